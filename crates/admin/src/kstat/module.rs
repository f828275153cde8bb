//! What the kernel module says of features and properties in folders of `/sys/module/zfs`: a folder
//! for each of them, with a file for each attribute.
//!
//! | folder | of |
//! |---|---|
//! | `features.kernel` | features of commands without one of pools |
//! | `features.pool` | features of pools that can be enabled, by their guids |
//! | `properties.dataset`, `properties.pool` | properties that commands know |
//!
//! Everything is of tables of this program, so nothing waits.

use dsl::props::{DatasetKind, PROPS, Prop, PropKind, PropType};
use ondisk::feature::{FEATURES, Feature, FeatureId, FeatureZap};

use super::Node;
use crate::pool::props as pool_props;

/// The folders, in [`FOLDER`].
const FOLDERS: [&str; 4] = ["features.kernel", "features.pool", "properties.dataset", "properties.pool"];
/// Where they are.
pub(super) const FOLDER: &str = "module/zfs";
/// What commands can do since some release of OpenZFS without a feature of pools.
const OF_KERNEL: [&str; 3] =
    ["com.delphix:vdev_initialize", "org.zfsonlinux:vdev_trim", "org.openzfs:l2arc_persistent"];
const OF_FEATURE: [&str; 7] =
    ["description", "guid", "uname", "readonly_compatible", "required_for_mos", "activate_on_enable", "per_dataset"];
/// Of each property; the last of those of datasets only.
const OF_PROPERTY: [&str; 7] = ["type", "readonly", "setonce", "visible", "values", "default", "datasets"];

/// A path in its parts: the folder, and what is named in it.
fn parts(path: &str) -> Option<(&'static str, Option<&str>, Option<&str>)> {
    let mut parts = path.strip_prefix(FOLDER)?.strip_prefix('/')?.split('/');
    let folder = parts.next()?;
    let folder = FOLDERS.into_iter().find(|f| *f == folder)?;
    let found = (folder, parts.next(), parts.next());
    parts.next().is_none().then_some(found)
}

fn features() -> impl Iterator<Item = &'static Feature> {
    FEATURES.iter().filter(|f| f.may_be_enabled())
}

fn properties() -> impl Iterator<Item = &'static Prop> {
    PROPS.iter().filter(|p| p.kind != PropKind::Shown)
}

/// What is named in a folder.
fn names(folder: &str) -> Vec<&'static str> {
    match folder {
        "features.kernel" => OF_KERNEL.to_vec(),
        "features.pool" => features().map(|f| f.guid).collect(),
        "properties.dataset" => properties().map(|p| p.name).collect(),
        _ => pool_props::names(false).collect(),
    }
}

/// The attributes of each.
fn attributes(folder: &str) -> &'static [&'static str] {
    match folder {
        "features.kernel" => &["supported"],
        "features.pool" => &OF_FEATURE,
        "properties.dataset" => &OF_PROPERTY,
        _ => &OF_PROPERTY[..OF_PROPERTY.len() - 1],
    }
}

/// What is at a path.
pub(super) fn node(path: &str) -> Option<Node> {
    let (folder, name, attribute) = parts(path)?;
    let Some(name) = name else { return Some(Node::Folder) };
    if !names(folder).contains(&name) {
        return None;
    }
    match attribute {
        None => Some(Node::Folder),
        Some(a) => attributes(folder).contains(&a).then_some(Node::Public),
    }
}

/// The names in a folder, or in [`FOLDER`], each with what it is.
pub(super) fn list(path: &str) -> Vec<(String, Node)> {
    let all = |names: &[&str], node: Node| names.iter().map(|n| (n.to_string(), node)).collect();
    match parts(path) {
        _ if path == FOLDER => all(&FOLDERS, Node::Folder),
        Some((folder, None, _)) => all(&names(folder), Node::Folder),
        Some((folder, Some(_), None)) => all(attributes(folder), Node::Public),
        _ => Vec::new(),
    }
}

/// The text of a file.
pub(super) fn text(path: &str) -> Option<String> {
    let (folder, name, attribute) = parts(path)?;
    let (name, attribute) = (name?, attribute?);
    let value = match folder {
        "features.kernel" => "yes".to_string(),
        "features.pool" => of_feature(FeatureId::by_guid(name)?.get(), attribute),
        "properties.dataset" => of_property(properties().find(|p| p.name == name)?, attribute),
        _ => pool_props::attribute(name, attribute)?,
    };
    node(path).map(|_| format!("{value}\n"))
}

/// A truth as a number.
pub(crate) fn bit(is_so: bool) -> String {
    u8::from(is_so).to_string()
}

fn of_feature(f: &Feature, attribute: &str) -> String {
    match attribute {
        "description" => f.description.into(),
        "guid" => f.guid.into(),
        "uname" => f.name.into(),
        "readonly_compatible" => bit(f.zap == FeatureZap::Write),
        "required_for_mos" => bit(f.mos),
        "activate_on_enable" => bit(f.activate_on_enable),
        _ => bit(f.per_dataset),
    }
}

fn of_property(p: &Prop, attribute: &str) -> String {
    let kinds = || {
        let named = [
            ("filesystem", DatasetKind::Filesystem),
            ("snapshot", DatasetKind::Snapshot),
            ("volume", DatasetKind::Volume),
        ];
        let of = named.into_iter().filter(|(_, kind)| p.applies_to(*kind)).map(|(name, _)| name);
        of.collect::<Vec<_>>().join(" ")
    };
    match attribute {
        "type" => match p.ty {
            PropType::Size { .. } | PropType::Number => "number".into(),
            PropType::Text => "string".into(),
            PropType::Index(_) | PropType::Compression | PropType::Checksum => "index".into(),
        },
        "readonly" => bit(matches!(p.kind, PropKind::ReadOnly)),
        "setonce" => bit(matches!(p.kind, PropKind::Once)),
        "visible" => bit(!p.kinds.is_empty()),
        "values" => p.values.into(),
        "default" => p.format(&p.default_value(), true),
        _ => kinds(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folders_has_a_text() {
        let mut files = 0;
        for (folder, _) in list(FOLDER) {
            let folder = format!("{FOLDER}/{folder}");
            assert_eq!(node(&folder), Some(Node::Folder));
            for (name, _) in list(&folder) {
                let of = format!("{folder}/{name}");
                assert_eq!(node(&of), Some(Node::Folder), "{of}");
                for (attribute, _) in list(&of) {
                    let path = format!("{of}/{attribute}");
                    let text = text(&path).unwrap();
                    assert_eq!(node(&path), Some(Node::Public), "{path}");
                    // As programs that look for what cannot be printed expect.
                    assert!(text.ends_with('\n') && text.trim_end().is_ascii(), "{path}: {text}");
                    files += 1;
                }
            }
        }
        assert!(files > 500, "{files}");
        for (path, want) in [
            ("features.kernel/org.zfsonlinux:vdev_trim/supported", "yes\n"),
            ("features.pool/org.open-zfs:large_blocks/guid", "org.open-zfs:large_blocks\n"),
            ("features.pool/org.open-zfs:large_blocks/uname", "large_blocks\n"),
            ("features.pool/com.delphix:hole_birth/required_for_mos", "1\n"),
            ("features.pool/com.delphix:livelist/readonly_compatible", "1\n"),
            ("properties.dataset/recordsize/type", "number\n"),
            ("properties.dataset/recordsize/default", "131072\n"),
            ("properties.dataset/recordsize/datasets", "filesystem\n"),
            ("properties.dataset/casesensitivity/setonce", "1\n"),
            ("properties.dataset/used/readonly", "1\n"),
            ("properties.pool/failmode/values", "wait | continue | panic\n"),
            ("properties.pool/failmode/default", "wait\n"),
            ("properties.pool/size/readonly", "1\n"),
        ] {
            assert_eq!(text(&format!("{FOLDER}/{path}")).as_deref(), Some(want), "{path}");
        }
        for path in
            ["features.pool/nonsense", "properties.pool/size/datasets", "properties.pool/size/type/x", "nonsense"]
        {
            let path = format!("{FOLDER}/{path}");
            assert_eq!((node(&path), text(&path)), (None, None), "{path}");
        }
    }
}
