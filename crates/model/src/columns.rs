//! Named columns of numbers for the tokens of a completion. Samplers record some of them and scorers add others. They
//! are passed from the rollout engine to the loss.
//!
//! A column has one row per token. A row holds one number or several (say, for the k most likely tokens of a teacher
//! model).

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Log-probability of each token under the sampler: from all logits / temperature, before penalties and truncation.
pub const SAMPLER_LOGPS: &str = "sampler_logps";
/// Ids of the k most likely tokens under the sampler at each token, most likely first. Width k.
pub const TOP_IDS: &str = "top_ids";
/// Log-probabilities of the tokens in `top_ids`, computed as [`SAMPLER_LOGPS`].
pub const TOP_LOGPS: &str = "top_logps";
/// Entropy of the sampler's distribution over all tokens, in nats, from all logits / temperature as [`SAMPLER_LOGPS`].
pub const ENTROPIES: &str = "entropies";
/// Log-probability of each token under the old policy of the PPO/GRPO ratio. The column exists if the old policy
/// differs from the sampler (a different weight version or engine).
pub const OLD_LOGPS: &str = "old_logps";
/// Log-probability of each token under the reference model.
pub const REF_LOGPS: &str = "ref_logps";
/// Log-probability of each token after the optimizer step that trained on it.
pub const NEW_LOGPS: &str = "new_logps";
/// Value estimates at rollout time: the value of the state in which each token was chosen.
pub const VALUES: &str = "values";
/// Returns: the target of the value estimate of each token's state.
pub const RETURNS: &str = "returns";

/// The columns of one completion, by name: numbers for each of its tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Columns(BTreeMap<Cow<'static, str>, Column>);

/// One column: the values of every token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Number of values per token.
    pub width: usize,
    /// The values, token by token.
    pub values: Values,
}

/// The values of a column. They are serialised as bits, so that NaN and infinities survive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Values {
    /// Floating-point numbers: log-probabilities, value estimates, rewards.
    F32(#[serde(with = "bits")] Vec<f32>),
    /// Integers: token ids, expert indices.
    U32(Vec<u32>),
}

impl Column {
    /// Number of tokens in the column.
    pub fn tokens(&self) -> usize {
        let len = match &self.values {
            Values::F32(values) => values.len(),
            Values::U32(values) => values.len(),
        };
        len / self.width.max(1)
    }
}

impl Columns {
    /// Builds columns that have one number per token.
    pub fn of<const N: usize>(columns: [(&'static str, Vec<f32>); N]) -> Columns {
        let mut out = Columns::default();
        for (name, values) in columns {
            out.set(name, values);
        }
        out
    }

    /// Sets a column of one number per token.
    pub fn set(&mut self, name: &'static str, values: Vec<f32>) {
        self.insert(name, Column { width: 1, values: Values::F32(values) });
    }

    /// Sets a column of any width.
    pub fn insert(&mut self, name: impl Into<Cow<'static, str>>, column: Column) {
        self.0.insert(name.into(), column);
    }

    /// Removes a column and returns it.
    pub fn remove(&mut self, name: &str) -> Option<Column> {
        self.0.remove(name)
    }

    /// The column of this name, if there is one.
    pub fn get(&self, name: &str) -> Option<&Column> {
        self.0.get(name)
    }

    /// The numbers of a column that has one f32 per token; `None` if the column does not exist.
    pub fn f32(&self, name: &str) -> Option<&[f32]> {
        match self.0.get(name) {
            Some(Column { width: 1, values: Values::F32(values) }) => Some(values),
            _ => None,
        }
    }

    /// Log-probabilities under the sampler: column [`SAMPLER_LOGPS`].
    pub fn sampler_logps(&self) -> Option<&[f32]> {
        self.f32(SAMPLER_LOGPS)
    }

    /// Log-probabilities under the old policy: column [`OLD_LOGPS`], or else [`SAMPLER_LOGPS`].
    pub fn old_logps(&self) -> Option<&[f32]> {
        self.f32(OLD_LOGPS).or_else(|| self.sampler_logps())
    }

    /// Log-probabilities under the reference model: column [`REF_LOGPS`].
    pub fn ref_logps(&self) -> Option<&[f32]> {
        self.f32(REF_LOGPS)
    }

    /// All columns, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Column)> {
        self.0.iter().map(|(name, column)| (name.as_ref(), column))
    }
}

mod bits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(values: &[f32], to: S) -> Result<S::Ok, S::Error> {
        values.iter().map(|x| x.to_bits()).collect::<Vec<u32>>().serialize(to)
    }
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f32>, D::Error> {
        Ok(Vec::<u32>::deserialize(from)?.into_iter().map(f32::from_bits).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serialised_columns_keep_every_bit() {
        let awkward = vec![-0.0, f32::NAN, f32::NEG_INFINITY, f32::MIN_POSITIVE / 2.0];
        let mut columns = Columns::of([(SAMPLER_LOGPS, awkward.clone())]);
        columns.insert("teacher_ids", Column { width: 2, values: Values::U32((0..8).collect()) });
        let back: Columns = serde_json::from_str(&serde_json::to_string(&columns).unwrap()).unwrap();
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(back.sampler_logps().unwrap()), bits(&awkward));
        assert_eq!(back.get("teacher_ids"), columns.get("teacher_ids"));
        assert!(back.iter().all(|(_, column)| column.tokens() == 4));
        assert_eq!(back.f32("teacher_ids"), None, "top_ids has integers and width 2");
    }

    #[test]
    fn old_logps_default_to_sampler_logps() {
        let mut columns = Columns::of([(SAMPLER_LOGPS, vec![-1.0])]);
        assert_eq!(columns.old_logps(), Some(&[-1.0][..]));
        columns.set(OLD_LOGPS, vec![-2.0]);
        assert_eq!((columns.old_logps(), columns.ref_logps()), (Some(&[-2.0][..]), None));
    }

    #[test]
    fn columns_are_looked_up_by_name_and_type() {
        let mut columns = Columns::of([(VALUES, vec![1.0, 2.0]), (RETURNS, vec![3.0, 4.0])]);
        assert_eq!(columns.iter().map(|(name, _)| name).collect::<Vec<_>>(), [RETURNS, VALUES], "by name");
        assert_eq!((columns.f32(VALUES), columns.f32(RETURNS)), (Some(&[1.0, 2.0][..]), Some(&[3.0, 4.0][..])));
        assert_eq!((columns.old_logps(), columns.sampler_logps()), (None, None));
        columns.set(REF_LOGPS, vec![-1.0]);
        assert_eq!(columns.ref_logps(), Some(&[-1.0][..]));
        columns.insert(TOP_LOGPS, Column { width: 2, values: Values::F32(vec![0.0; 4]) });
        columns.insert("ids", Column { width: 1, values: Values::U32(vec![5; 3]) });
        assert_eq!(
            (columns.f32(TOP_LOGPS), columns.f32("ids")),
            (None, None),
            "f32() returns only f32 columns of width 1"
        );
        let tokens = |width, values| Column { width, values }.tokens();
        assert_eq!(tokens(2, Values::F32(vec![0.0; 6])), 3);
        assert_eq!(tokens(3, Values::U32(vec![0; 6])), 2);
        assert_eq!(tokens(0, Values::U32(vec![])), 0);
        let removed = columns.remove("ids").unwrap();
        assert_eq!((removed.tokens(), columns.remove("ids")), (3, None));
        assert_eq!(columns.get("ids"), None);
        columns.set(VALUES, vec![9.0]);
        assert_eq!((columns.f32(VALUES), columns.iter().count()), (Some(&[9.0][..]), 4));
    }
}
