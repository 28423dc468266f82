//! OLMo 3: OLMo 2 with a sliding window on three out of four layers. Rope scaling applies only to the layers without a
//! window.

use super::olmo2::like_olmo;
use crate::config::{Fields, LayerRope, rope, slides};
use crate::{Family, ModelConfig, Result};
use serde_json::{Map, Value};

pub(super) static FAMILY: Family = Family {
    model_type: "olmo3",
    architecture: "Olmo3ForCausalLM",
    score_architecture: "Olmo3ForSequenceClassification",
    read,
};

const THETA: f64 = 500_000.0;

fn read(f: &Fields<'_>, family: &'static Family) -> Result<ModelConfig> {
    let (full, sliding) = (layer_fields(f, "full_attention"), layer_fields(f, "sliding_attention"));
    let mut c = like_olmo(&Fields { map: &full, prefix: f.prefix }, family, THETA)?;
    c.raw = f.map.clone();
    let slides = match slides(f, c.num_layers)? {
        Some(slides) => slides,
        None => (1..=c.num_layers).map(|layer| layer % 4 != 0).collect(),
    };
    let window = f.size("sliding_window", Some(4096))?;
    if slides.contains(&true) {
        c.local_rope = Some(rope(&Fields { map: &sliding, prefix: f.prefix }, c.max_position_embeddings, THETA)?);
    }
    let kind = |&slides: &bool| if slides { LayerRope::Local } else { LayerRope::Global };
    c.layer_ropes = slides.iter().map(kind).collect();
    c.windows = slides.into_iter().map(|slides| slides.then_some(window)).collect();
    Ok(c)
}

/// The fields of `config.json` with the rope settings of one kind of layer. transformers 5 writes them under the kind's
/// name in `rope_parameters`. In files of transformers 4, `rope_scaling` applies only to layers with full attention,
/// and θ to both kinds of layers.
pub(super) fn layer_fields(f: &Fields<'_>, kind: &str) -> Map<String, Value> {
    let mut map = f.map.clone();
    if kind == "sliding_attention" {
        map.remove("rope_scaling");
    }
    if let Some(Value::Object(both)) = f.get("rope_parameters") {
        match both.get(kind) {
            Some(own) => drop(map.insert("rope_parameters".into(), own.clone())),
            None if both.contains_key("full_attention") || both.contains_key("sliding_attention") => {
                map.remove("rope_parameters");
            }
            None => {}
        }
    }
    map
}
