//! Reads rotary position settings from `config.json`, with the field names of transformers 4 and 5.

use super::fields::Fields;
use super::{Rope, RopeScaling};
use crate::Result;
use serde_json::{Map, Value};

/// Reads rotary position settings. `rope_scaling` (transformers 4) takes precedence over `rope_parameters` (5), and a θ
/// inside either of them takes precedence over the θ outside.
pub(crate) fn rope(f: &Fields<'_>, max_position_embeddings: usize, default_theta: f64) -> Result<Rope> {
    let given = |key| match f.get(key) {
        None => Ok(None),
        Some(Value::Object(map)) if map.is_empty() => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map)),
        Some(_) => Err(f.error(key, "expected an object")),
    };
    let empty = Map::new();
    let (map, prefix) = match (given("rope_scaling")?, given("rope_parameters")?) {
        (Some(map), _) => (map, "rope_scaling."),
        (None, Some(map)) => (map, "rope_parameters."),
        (None, None) => (&empty, "rope_parameters."),
    };
    let r = Fields { map, prefix };
    const KNOWN: &[&str] = &[
        "rope_type",
        "type",
        "rope_theta",
        "partial_rotary_factor",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ];
    let kind_key = if r.get("rope_type").is_some() { "rope_type" } else { "type" };
    let kind = r.text(kind_key)?.unwrap_or("default");
    if !["default", "linear", "llama3", "yarn"].contains(&kind) {
        return Err(r.error(kind_key, "not supported; supported: default, linear, llama3, yarn"));
    }
    if let Some(key) = map.keys().find(|k| !KNOWN.contains(&k.as_str())) {
        return Err(r.error(key, "not supported"));
    }
    if r.number("partial_rotary_factor")?.is_some_and(|p| p != 1.0) {
        return Err(r.error("partial_rotary_factor", "not supported; supported: 1"));
    }
    let theta = match (r.number("rope_theta")?, f.number("rope_theta")?) {
        (Some(theta), _) | (None, Some(theta)) => theta,
        (None, None) => default_theta,
    };
    if theta <= 1.0 {
        let at = if r.get("rope_theta").is_some() { &r } else { f };
        return Err(at.error("rope_theta", "expected a number above 1"));
    }
    // As in transformers, the top-level field takes precedence.
    let original = match (f.number("original_max_position_embeddings")?, r.number("original_max_position_embeddings")?)
    {
        (Some(n), _) | (None, Some(n)) => n,
        (None, None) => max_position_embeddings as f64,
    };
    let scaling = match kind {
        "default" => RopeScaling::Default,
        "linear" => RopeScaling::Linear { factor: r.required("factor")? },
        "llama3" => {
            let (low, high) = (r.required("low_freq_factor")?, r.required("high_freq_factor")?);
            if high <= low {
                return Err(r.error("high_freq_factor", format!("must be above low_freq_factor = {low}")));
            }
            RopeScaling::Llama3 {
                factor: r.required("factor")?,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            }
        }
        _ => {
            let factor = r.number("factor")?.unwrap_or(max_position_embeddings as f64 / original);
            let temper = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * libm::log(factor) + 1.0 };
            let attention_factor =
                match (r.number("attention_factor")?, r.number("mscale")?, r.number("mscale_all_dim")?) {
                    (Some(given), _, _) => given,
                    (None, Some(above), Some(below)) => temper(above) / temper(below),
                    _ => temper(1.0),
                };
            RopeScaling::Yarn {
                factor,
                attention_factor,
                beta_fast: r.number("beta_fast")?.unwrap_or(32.0),
                beta_slow: r.number("beta_slow")?.unwrap_or(1.0),
                original_max_position_embeddings: original,
                truncate: r.bool("truncate", true)?,
            }
        }
    };
    Ok(Rope { theta, scaling })
}
