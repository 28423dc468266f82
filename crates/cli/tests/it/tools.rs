//! `config` and `doctor` through the command line.

use crate::support::lockstep;

#[test]
fn the_output_of_config_show_is_a_valid_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let output =
        lockstep(dir.path(), &["config", "show", "--task", "gsm8k", "--set", "beta=0.04", "--set", "use_vllm=true"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(
        output.out.contains("beta = 0.04  # command line") && output.out.contains("\"question\"  # task"),
        "{}",
        output.out
    );
    assert!(output.err.contains("note: use_vllm has no meaning here"), "{}", output.err);
    std::fs::write(dir.path().join("c.toml"), &output.out).unwrap();
    let json = |arguments: &[&str]| -> serde_json::Value {
        let output = lockstep(dir.path(), arguments);
        assert_eq!(output.code, Some(0), "{}", output.err);
        serde_json::from_str(&output.out).unwrap()
    };
    let again = json(&["config", "show", "c.toml", "--json"]);
    assert_eq!((&again["beta"], &again["prompt_column"]), (&0.04.into(), &"question".into()));
    assert_eq!(json(&["config", "schema"])["properties"]["beta"]["type"], "number");
}

#[test]
fn doctor_prints_its_measurements() {
    let dir = tempfile::tempdir().unwrap();
    let output = lockstep(dir.path(), &["doctor", "--json", "--threads", "1"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    let found: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    let present = found["isa_present"].as_array().unwrap();
    assert!(present.contains(&found["isa"]) && present.contains(&"portable".into()), "{found}");
    assert!(
        found["flops_per_s"].as_f64().unwrap() > 0.0 && found["read_bytes_per_s"].as_f64().unwrap() > 0.0,
        "{found}"
    );
    // Either AMX is listed as present, or the reason is printed.
    assert_eq!(found["amx"] == "usable", present.contains(&"amx".into()), "{found}");
    assert_eq!(found["tile_flops_per_s"].is_number(), found["isa"] == "amx", "{found}");
    // The same holds for AVX-512 BF16's dot products. If they are present but unused, they were measured to be slow.
    assert_eq!(found["bf16_pairs"] == "usable", present.contains(&"avx512-bf16".into()), "{found}");
    assert_eq!(found["pair_flops_per_s"].is_number(), found["isa"] == "avx512-bf16", "{found}");
    assert_eq!(found["bf16_pairs_gain"].is_number(), found["bf16_pairs"] == "usable", "{found}");
    assert_eq!((&found["threads"], &found["device"]), (&1.into(), &"cpu".into()));
}

#[test]
fn a_trl_script_is_translated_to_a_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let script =
        "from trl import GRPOConfig\nargs = GRPOConfig(output_dir='o', num_generations=4, beta=f(), bf16=True)\n";
    std::fs::write(dir.path().join("t.py"), script).unwrap();
    let output = lockstep(dir.path(), &["config", "from-trl", "t.py", "--python", "none/python3"]);
    assert_eq!(output.code, Some(2), "{}", output.err);
    assert!(
        output.err.contains("program `none/python3` not found") && output.err.contains("--python PATH"),
        "{}",
        output.err
    );
    let Some(()) = testing::program("python3") else { return };
    let output = lockstep(dir.path(), &["config", "from-trl", "t.py"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    std::fs::write(dir.path().join("t.toml"), &output.out).unwrap();
    assert!(
        output.out.contains("# - beta = f(): not a literal") && output.out.contains("# - bf16 = true"),
        "{}",
        output.out
    );
    let output = lockstep(dir.path(), &["config", "show", "t.toml"]);
    assert!(output.out.contains("num_generations = 4  # t.toml"), "{}{}", output.out, output.err);
}
