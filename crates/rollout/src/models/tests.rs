//! Tests of looking up weights and adapters by version.

use super::*;
use kernels::{Device, Memory};
use model::{LoraConfig, ModelConfig};
use std::sync::Arc;

fn weights(version: u64) -> Weights {
    let version = Updates(version);
    let json = r#"{"model_type": "llama", "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 5}"#;
    let config = Arc::new(ModelConfig::parse(json).unwrap());
    Weights { version, ..Weights::zeros(&Memory::new(Device::Cpu), &config) }
}

fn adapter(base: &Weights, version: u64) -> Adapter {
    let version = Updates(version);
    Adapter { version, ..Adapter::zeros(&Memory::new(Device::Cpu), base, &LoraConfig::default()).unwrap() }
}

#[test]
fn weights_are_found_by_version_and_adapters_by_id_and_version() {
    let (current, old, older) = (weights(3), weights(2), weights(1));
    let (own, a, b) = (adapter(&current, 7), adapter(&current, 8), adapter(&current, 9));
    let view = ModelView::new(&current, Some(&own));
    let models = Models { current: Some(view), bases: &[&old, &older], adapters: &[(4, &a), (5, &a), (4, &b)] };
    for (version, found) in [(3, &current), (2, &old), (1, &older)] {
        assert!(std::ptr::eq(models.base(Updates(version)).unwrap(), found));
    }
    let error = models.base(Updates(4)).unwrap_err().to_string();
    assert_eq!(error, "a request needs version 4 of the weights, which the step did not get");
    let of = |id, version| models.adapter(AdapterVersion { id, version: Updates(version) }).map_err(|e| e.to_string());
    for (id, version, found) in [(AdapterVersion::OF_VIEW, 7, &own), (4, 8, &a), (5, 8, &a), (4, 9, &b)] {
        assert!(std::ptr::eq(of(id, version).unwrap(), found));
    }
    for (id, version) in [(5, 9), (6, 8), (AdapterVersion::OF_VIEW, 8)] {
        let why = format!("a request needs version {version} of adapter {id}, which the step did not get");
        assert_eq!(of(id, version).err(), Some(why));
    }
    let view_adapter = AdapterVersion { id: AdapterVersion::OF_VIEW, version: Updates(7) };
    let version = models.current_version().unwrap();
    assert_eq!((version, version.trained().0), (ModelVersion { base: Updates(3), adapter: Some(view_adapter) }, 7));
    let plain = Models::from(&old).current_version().unwrap();
    assert_eq!((plain, plain.trained().0), (ModelVersion { base: Updates(2), adapter: None }, 2));
    assert_eq!(Models::default().current_version(), None);
    assert!(Models::default().base(Updates(0)).is_err());
}
