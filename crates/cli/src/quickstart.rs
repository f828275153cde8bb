//! stub
use base::Error;

use crate::Done;
pub fn run(_args: &[String]) -> Done {
    Err(Error::unsupported("not yet").into())
}
