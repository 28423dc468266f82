//! Paths of saved states.

use super::failure::Failure;
use std::fmt;
use std::str::FromStr;

/// The scheme of paths.
const SCHEME: &str = "tinker://";
/// The longest name of a model or of a saved state.
const MOST_NAME: usize = 128;

/// The kind of a saved state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An adapter with its moments, from which training continues.
    Training,
    /// An adapter for sampling.
    Sampler,
}

impl Kind {
    /// The part of the path.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Training => "weights",
            Kind::Sampler => "sampler_weights",
        }
    }
}

/// The path of a saved state: `tinker://MODEL/weights/NAME` or `tinker://MODEL/sampler_weights/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StatePath {
    /// The id of the model that saved it.
    pub model: String,
    /// The kind of a saved state.
    pub kind: Kind,
    /// The name that the client chose.
    pub name: String,
}

impl fmt::Display for StatePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StatePath { model, kind, name } = self;
        write!(f, "{SCHEME}{model}/{}/{name}", kind.name())
    }
}

impl FromStr for StatePath {
    type Err = Failure;

    fn from_str(text: &str) -> Result<StatePath, Failure> {
        let wrong = || {
            Failure::request(format!(
                "the path `{text}` is not of the form {SCHEME}MODEL/weights/NAME or {SCHEME}MODEL/sampler_weights/NAME"
            ))
        };
        let parts: Vec<&str> = text.strip_prefix(SCHEME).ok_or_else(wrong)?.split('/').collect();
        let [model, kind, name] = parts[..] else { return Err(wrong()) };
        let kind = [Kind::Training, Kind::Sampler].into_iter().find(|known| known.name() == kind).ok_or_else(wrong)?;
        check_name(model)?;
        check_name(name)?;
        Ok(StatePath { model: model.to_owned(), kind, name: name.to_owned() })
    }
}

/// Checks a name that becomes the name of a directory.
pub fn check_name(name: &str) -> Result<(), Failure> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-:+=@".contains(c);
    if (1..=MOST_NAME).contains(&name.len()) && !name.starts_with('.') && name.chars().all(fits) {
        return Ok(());
    }
    Err(Failure::request(format!(
        "the name `{}` must have 1 to {MOST_NAME} letters, digits or characters of ._-:+=@, and must not begin with a \
         dot",
        name.chars().take(MOST_NAME).collect::<String>()
    )))
}

#[cfg(test)]
mod tests {
    use super::super::failure::Cause;
    use super::*;

    #[test]
    fn a_path_names_model_kind_and_state() {
        for text in ["tinker://s1:train:0/weights/a", "tinker://s1:train:0/sampler_weights/step-000010"] {
            assert_eq!(text.parse::<StatePath>().unwrap().to_string(), text);
        }
        for text in ["", "x", "tinker://a/weights", "tinker://a/b/c", "tinker://a/weights/b/c", "http://a/weights/b"] {
            let failure = text.parse::<StatePath>().unwrap_err();
            assert!(
                failure.cause == Cause::Request && failure.message.contains(&format!("the path `{text}`")),
                "{failure:?}"
            );
        }
        for name in ["", ".", "..", ".hidden", "a b", "ä", "a\0", &"a".repeat(129)] {
            let failure = format!("tinker://m/weights/{name}").parse::<StatePath>().unwrap_err();
            assert!(failure.message.contains("must have 1 to 128"), "{failure:?}");
            assert!(format!("tinker://{name}/weights/a").parse::<StatePath>().is_err());
        }
    }
}
