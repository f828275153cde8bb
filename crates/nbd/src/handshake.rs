//! The handshake: from the greeting to the choice of an export.
//!
//! **Option**: a message of the client that asks for something or chooses. **Question**: what the
//! handshake asks its caller, since only the caller knows exports; the answer may take its time.
//!
//! The normal path: [`Handshake::new`] puts the greeting into the output. The caller calls
//! [`Handshake::take`] with what the client sent, as often as it likes, and does what the [`Step`]
//! says: [`Step::Send`] the output, [`Step::More`] bytes, [`Step::Find`] an export and then call
//! [`Handshake::found`], [`Step::List`] exports and then call [`Handshake::listed`]. The last step
//! is [`Step::Start`] or [`Step::End`]. In between come, for a usual client, its flags, the options
//! `STRUCTURED_REPLY`, `SET_META_CONTEXT` and `GO`.
//!
//! Invariants:
//! * Nothing is taken while output waits or a question is open: a client that never reads, or sends
//!   many options at once, makes the server hold one option and its answers. `take` then takes 0
//!   bytes and repeats the step.
//! * The bytes behind the option that chose belong to the first request and are not taken.
//! * A fault is final, and so are [`Step::Start`] and [`Step::End`].
//! * A failed or repeated `SET_META_CONTEXT` forgets the contexts of the one before. Contexts hold
//!   for the export that they were asked for.
//!
//! Knobs: [`OPTION_MAX`], [`OPTION_SKIP_MAX`], [`OPTIONS_MAX`], `LIST_MAX` in
//! [`proto`](crate::proto).

use base::Result as EngineResult;

use crate::export::Export;
use crate::fault::Fault;
use crate::option_reply::{self as reply, Listed};
use crate::options::{ContextWish, InfoWish, string};
use crate::proto::{
    ALLOCATION_ID, OPTION_HEADER, OPTION_MAGIC, OPTION_MAX, OPTION_SKIP_MAX, OPTIONS_MAX, STRING_MAX, hello, opt, rep,
};
use crate::terms::Terms;
use crate::wire::Fields;

/// Bytes of the client's flags.
const CLIENT_FLAGS_LEN: usize = 4;

/// What the caller does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Read more bytes from the client. If it closed the connection, the handshake is over.
    More,
    /// Send [`Handshake::output`] to the client.
    Send,
    /// Look for this export, and call [`Handshake::found`]. The empty name is that of the default.
    Find(String),
    /// Collect the names of all exports, and call [`Handshake::listed`].
    List,
    /// Begin the transmission: the bytes that were not taken are the first request.
    Start(Terms),
    /// Close the connection: the client does not want to go on.
    End,
}

/// What a handshake wants to know of its caller, and what for.
#[derive(Clone, Debug)]
enum Question {
    List,
    Chosen(String),
    Info { go: bool, wish: InfoWish },
    Contexts { set: bool, wish: ContextWish },
}

/// Where a handshake is.
#[derive(Clone, Debug)]
enum Stage {
    /// The client's flags come next.
    Flags,
    /// The header of an option comes next.
    Header,
    /// The data of an option come next.
    Data { option: u32, length: u32 },
    /// Data of an option come next that nobody needs, and then the answer: a refusal with its type
    /// and sentence, or, for `ABORT`, consent.
    Skip { option: u32, left: u32, refusal: Option<(u32, &'static str)> },
    /// The caller is asked.
    Asked(Question),
    /// An export is chosen.
    Ready(Terms),
    /// The client has ended it.
    Ended,
    /// The client has made a mistake.
    Failed(Fault),
}

/// The server's side of one handshake.
#[derive(Clone, Debug)]
pub struct Handshake {
    stage: Stage,
    out: Vec<u8>,
    /// The bytes so far of what comes next.
    held: Vec<u8>,
    /// Options so far.
    options: u32,
    fixed: bool,
    no_zeroes: bool,
    structured: bool,
    /// Proper name of the export for which `base:allocation` is chosen.
    allocation_of: Option<String>,
}

impl Default for Handshake {
    fn default() -> Handshake {
        Handshake::new()
    }
}

impl Handshake {
    /// A new connection: the greeting is in the output.
    pub fn new() -> Handshake {
        let mut out = Vec::new();
        reply::greeting(&mut out);
        Handshake {
            stage: Stage::Flags,
            out,
            held: Vec::new(),
            options: 0,
            fixed: false,
            no_zeroes: false,
            structured: false,
            allocation_of: None,
        }
    }

    /// The bytes that wait to be sent; they are the caller's now.
    pub fn output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Takes bytes of the client: how many of them, and what to do next. With no bytes it says
    /// again what to do. A fault means to close the connection.
    pub fn take(&mut self, input: &[u8]) -> Result<(usize, Step), Fault> {
        let mut used = 0;
        loop {
            if !self.out.is_empty() {
                return Ok((used, Step::Send));
            }
            let need = match &mut self.stage {
                Stage::Flags => CLIENT_FLAGS_LEN,
                Stage::Header => OPTION_HEADER,
                Stage::Data { length, .. } => *length as usize,
                Stage::Skip { option, left, refusal } => {
                    let n = (*left as usize).min(input.len() - used);
                    used += n;
                    // No more than what was left, which is 32 bits.
                    *left -= n as u32;
                    if *left > 0 {
                        return Ok((used, Step::More));
                    }
                    let (option, refusal) = (*option, *refusal);
                    self.stage = self.skipped(option, refusal);
                    continue;
                }
                Stage::Asked(Question::List) => return Ok((used, Step::List)),
                Stage::Asked(Question::Chosen(name)) => return Ok((used, Step::Find(name.clone()))),
                Stage::Asked(Question::Info { wish, .. }) => return Ok((used, Step::Find(wish.name.clone()))),
                Stage::Asked(Question::Contexts { wish, .. }) => return Ok((used, Step::Find(wish.name.clone()))),
                Stage::Ready(terms) => return Ok((used, Step::Start(terms.clone()))),
                Stage::Ended => return Ok((used, Step::End)),
                Stage::Failed(fault) => return Err(fault.clone()),
            };
            let n = (need - self.held.len()).min(input.len() - used);
            self.held.extend_from_slice(&input[used..used + n]);
            used += n;
            if self.held.len() < need {
                return Ok((used, Step::More));
            }
            let message = std::mem::take(&mut self.held);
            let next = match self.stage {
                Stage::Flags => self.flags(&message),
                Stage::Data { option, .. } => self.option(option, &message),
                _ => self.header(&message),
            };
            self.stage = next.unwrap_or_else(Stage::Failed);
        }
    }

    /// Answers [`Step::Find`]. An error of the kind `NotFound` tells the client that there is no
    /// such export, `Interrupted` that the server ends, any other that it may not have it; the
    /// client's user sees the sentence. An export that fails [`Export::check`] counts as an error.
    /// Call it after that step only.
    pub fn found(&mut self, export: EngineResult<Export>) {
        let Stage::Asked(question) = std::mem::replace(&mut self.stage, Stage::Header) else {
            panic!("a handshake is told of an export that it did not ask for");
        };
        let export = export.and_then(|e| e.check().map(|()| e));
        let (option, error) = match (question, export) {
            (Question::List, _) => panic!("a handshake that asked for the list is told of one export"),
            (Question::Chosen(_), Ok(export)) => {
                reply::chosen(&mut self.out, &export, self.structured, self.no_zeroes);
                return self.start(export);
            }
            (Question::Chosen(_), Err(e)) => {
                self.stage = Stage::Failed(Fault::NoExport(e.to_string()));
                return;
            }
            (Question::Info { go, wish }, Ok(export)) => {
                let option = if go { opt::GO } else { opt::INFO };
                let (name, text) = (wish.wants_name, wish.wants_description);
                reply::described(&mut self.out, option, &export, self.structured, name, text);
                return if go {
                    self.start(export)
                };
            }
            (Question::Contexts { set, wish }, Ok(export)) => {
                let chosen = wish.allocation && export.block_status;
                if set {
                    self.allocation_of = chosen.then_some(export.name);
                    return reply::contexts(&mut self.out, opt::SET_META_CONTEXT, chosen.then_some(ALLOCATION_ID));
                }
                return reply::contexts(&mut self.out, opt::LIST_META_CONTEXT, chosen.then_some(0));
            }
            (Question::Info { go, .. }, Err(e)) => (if go { opt::GO } else { opt::INFO }, e),
            (Question::Contexts { set, .. }, Err(e)) => {
                (if set { opt::SET_META_CONTEXT } else { opt::LIST_META_CONTEXT }, e)
            }
        };
        reply::refuse(&mut self.out, option, reply::kind_of(&error), &error.to_string());
    }

    /// Answers [`Step::List`]; an error reaches the client as in [`Handshake::found`]. Call it
    /// after that step only.
    pub fn listed(&mut self, list: EngineResult<&[Listed]>) {
        let question = std::mem::replace(&mut self.stage, Stage::Header);
        assert!(matches!(question, Stage::Asked(Question::List)), "a handshake gets a list that it did not ask for");
        match list {
            Ok(list) => reply::listed(&mut self.out, list),
            Err(e) => reply::refuse(&mut self.out, opt::LIST, reply::kind_of(&e), &e.to_string()),
        }
    }

    fn start(&mut self, export: Export) {
        let block_status = self.allocation_of.as_deref() == Some(&export.name);
        self.stage = Stage::Ready(Terms { export, structured: self.structured, block_status });
    }

    /// Answers an option whose data were skipped.
    fn skipped(&mut self, option: u32, refusal: Option<(u32, &'static str)>) -> Stage {
        match refusal {
            Some((kind, why)) => {
                reply::refuse(&mut self.out, option, kind, why);
                Stage::Header
            }
            None => {
                reply::ack(&mut self.out, option);
                Stage::Ended
            }
        }
    }

    fn flags(&mut self, message: &[u8]) -> Result<Stage, Fault> {
        let flags = Fields::new(message).u32().unwrap_or_default();
        if flags & !u32::from(hello::FIXED_NEWSTYLE | hello::NO_ZEROES) != 0 {
            return Err(Fault::ClientFlags(flags));
        }
        self.fixed = flags & u32::from(hello::FIXED_NEWSTYLE) != 0;
        self.no_zeroes = flags & u32::from(hello::NO_ZEROES) != 0;
        Ok(Stage::Header)
    }

    /// The header of an option: whether its data are kept, skipped or too much.
    fn header(&mut self, message: &[u8]) -> Result<Stage, Fault> {
        let mut f = Fields::new(message);
        let magic = f.u64().unwrap_or_default();
        let (option, length) = (f.u32().unwrap_or_default(), f.u32().unwrap_or_default());
        if magic != OPTION_MAGIC {
            return Err(Fault::OptionMagic(magic));
        }
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(Fault::TooManyOptions);
        }
        if !self.fixed && option != opt::EXPORT_NAME {
            return Err(Fault::NotFixed(option));
        }
        let name_is_long = option == opt::EXPORT_NAME && length as usize > STRING_MAX;
        if length > OPTION_SKIP_MAX || name_is_long {
            return Err(Fault::OptionTooLong { option, length });
        }
        let skip = |kind, why| Ok(Stage::Skip { option, left: length, refusal: Some((kind, why)) });
        match option {
            opt::EXPORT_NAME => Ok(Stage::Data { option, length }),
            opt::ABORT => Ok(Stage::Skip { option, left: length, refusal: None }),
            opt::STARTTLS if length == 0 => skip(rep::ERR_POLICY, "this server has no TLS: connect through a tunnel"),
            opt::LIST | opt::STRUCTURED_REPLY | opt::STARTTLS if length != 0 => {
                skip(rep::ERR_INVALID, "this option has no data: send it without")
            }
            opt::LIST | opt::STRUCTURED_REPLY => Ok(Stage::Data { option, length }),
            opt::INFO | opt::GO | opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => {
                if option == opt::SET_META_CONTEXT {
                    self.allocation_of = None;
                }
                match length {
                    ..=OPTION_MAX => Ok(Stage::Data { option, length }),
                    _ => skip(rep::ERR_TOO_BIG, "the option is too long: send a shorter name and fewer queries"),
                }
            }
            opt::EXTENDED_HEADERS => skip(rep::ERR_UNSUP, "this server has no extended headers: go on without"),
            _ => skip(rep::ERR_UNSUP, "this server does not know the option: go on without"),
        }
    }

    /// An option with its data.
    fn option(&mut self, option: u32, data: &[u8]) -> Result<Stage, Fault> {
        let question = match option {
            opt::EXPORT_NAME => {
                let name = string(data).map_err(|why| Fault::NoExport(why.to_string()))?;
                Ok(Question::Chosen(name))
            }
            opt::LIST => Ok(Question::List),
            opt::STRUCTURED_REPLY => {
                self.structured = true;
                reply::ack(&mut self.out, option);
                return Ok(Stage::Header);
            }
            opt::INFO | opt::GO => InfoWish::parse(data).map(|wish| Question::Info { go: option == opt::GO, wish }),
            _ if !self.structured => Err("contexts need structured replies: ask for those first"),
            _ => {
                let set = option == opt::SET_META_CONTEXT;
                ContextWish::parse(data, set).map(|wish| Question::Contexts { set, wish })
            }
        };
        match question {
            Ok(question) => Ok(Stage::Asked(question)),
            Err(why) => {
                reply::refuse(&mut self.out, option, rep::ERR_INVALID, why);
                Ok(Stage::Header)
            }
        }
    }
}

#[cfg(test)]
mod tests;
