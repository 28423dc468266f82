//! Rows with images, video and audio, for every kind of run.

use super::*;
use crate::Config;
use crate::data::DatasetSpec;
use crate::data::Pairs;
use crate::error::is_bad_input;
use model::chat::{ChatTemplate, PromptEncoder};
use model::tokenizer::{SpecialTokens, Tokenizer};
use serde_json::json;
use std::path::Path;

/// A kind of run, which decides how rows are read.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Online,
    Sft,
    Pairs,
    Scored,
}

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}\
                        {% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}\n{% endfor %}";

/// The error for a file of two rows. The second row is `row`.
fn read(kind: Kind, row: &Value, columns: &[(&str, &str)]) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d.jsonl");
    let first = match kind {
        Kind::Pairs => json!({"prompt": "a", "chosen": "b", "rejected": "c"}),
        _ => json!({"prompt": "a", "completion": "b"}),
    };
    std::fs::write(&path, format!("{first}\n{row}\n")).unwrap();
    let result = read_file(kind, &path, columns);
    result.map_err(|error| {
        assert!(is_bad_input(&error), "{error}");
        error.to_string().replace(&path.display().to_string(), "d.jsonl")
    })
}

fn read_file(kind: Kind, path: &Path, columns: &[(&str, &str)]) -> anyhow::Result<()> {
    let name = path.display().to_string();
    let config = Config { dataset_name: Some(name.clone()), ..Config::default() };
    let mut spec = match kind {
        Kind::Scored => DatasetSpec::completions(&config, name),
        _ => DatasetSpec::train(&config).unwrap(),
    };
    spec.columns = columns.iter().map(|(new, old)| ((*new).to_owned(), (*old).to_owned())).collect();
    if kind == Kind::Sft {
        (spec.needs_completion, spec.whole_texts) = (true, true);
    }
    if kind != Kind::Pairs {
        return spec.load().map(drop);
    }
    let special = SpecialTokens { eos: Some("<e>".into()), ..SpecialTokens::default() };
    let tokenizer = Tokenizer::characters("abcdefghijklmnopqrstuvwxyz<>:\n ".chars(), &special).unwrap();
    let template = ChatTemplate::new(TEMPLATE, tokenizer.special()).unwrap();
    let kwargs = Map::new();
    let encoder = PromptEncoder { tokenizer: &tokenizer, template: Some(&template), kwargs: &kwargs, tools: None };
    Pairs::load(&spec, &encoder, 100, true, |_| Ok(())).map(drop)
}

#[test]
fn a_row_with_media_is_refused_with_its_line_in_every_kind_of_run() {
    let stored = json!({"bytes": null, "path": "x.png"});
    let image = json!([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what"}]}]);
    let [answer, other] = ["b", "c"].map(|text| json!([{"role": "assistant", "content": text}]));
    let columns = [
        ("image", json!("x.png"), true),
        ("image", json!("https://x/y.png"), true),
        ("image", json!({"bytes": "abc", "path": null}), true),
        ("image", stored.clone(), true),
        ("image", json!(null), false),
        ("image", json!(""), false),
        ("image", json!({"bytes": null, "path": null}), false),
        ("images", json!(["x.png"]), true),
        ("images", json!([stored]), true),
        ("images", json!([null, "x.png"]), true),
        ("images", json!([]), false),
        ("images", json!([null]), false),
        ("Images", json!(["x.png"]), true),
        ("pixel_values", json!([[0.5, 0.25]]), true),
        ("image_grid_thw", json!([[1, 2, 2]]), true),
        ("image_url", json!("https://x/y.png"), true),
        ("video", json!("x.mp4"), true),
        ("videos", json!(["x.mp4"]), true),
        ("video_url", json!("x.mp4"), true),
        ("audio", json!({"array": [0.5], "path": "x.wav", "sampling_rate": 16000}), true),
        ("audios", json!(["x.wav"]), true),
        ("input_features", json!([[0.5]]), true),
        ("figure", stored.clone(), true),
        ("figures", json!([stored]), true),
        ("sound", json!({"array": [0.5], "sampling_rate": 16000}), true),
        ("image_id", json!(7), false),
        ("caption", json!("an image"), false),
        ("file", json!("x.py"), false),
        ("files", json!([{"path": "x.py", "text": "y"}]), false),
        ("source", json!({"path": "x.py"}), false),
    ];
    let mut wrong = Vec::new();
    let mut check = |kind: Kind, row: Value, is_refused: bool, name: &str| {
        let found = read(kind, &row, &[]);
        let is_right = match &found {
            Ok(()) => !is_refused,
            Err(error) => {
                is_refused
                    && error.starts_with("d.jsonl, line 2: ")
                    && error.contains(name)
                    && error.contains("only text")
            }
        };
        if !is_right {
            wrong.push(format!("{kind:?} {row}: {found:?}"));
        }
    };
    for kind in [Kind::Online, Kind::Sft, Kind::Pairs, Kind::Scored] {
        for (name, value, is_media) in &columns {
            let mut row = match kind {
                Kind::Pairs => json!({"prompt": "a", "chosen": "b", "rejected": "d"}),
                _ => json!({"prompt": "a", "completion": "b"}),
            };
            row[*name] = value.clone();
            // Reward functions may read any column.
            check(kind, row, *is_media && kind != Kind::Scored, &format!("`{name}`"));
        }
    }
    for (kind, row, place) in [
        (Kind::Online, json!({"prompt": image}), "`prompt`"),
        (Kind::Sft, json!({"prompt": image, "completion": answer}), "`prompt`"),
        (Kind::Sft, json!({"prompt": answer, "completion": image}), "`completion`"),
        (Kind::Sft, json!({"messages": image}), "`messages`"),
        (Kind::Sft, json!({"conversations": image}), "`conversations`"),
        (Kind::Sft, json!({"input_ids": [1, 2], "pixel_values": [0.5]}), "`pixel_values`"),
        (Kind::Pairs, json!({"prompt": image, "chosen": answer, "rejected": other}), "`prompt`"),
        (Kind::Pairs, json!({"chosen": image, "rejected": answer}), "`chosen`"),
        (Kind::Pairs, json!({"chosen": answer, "rejected": image}), "`rejected`"),
        (Kind::Pairs, json!({"prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3], "images": ["x"]}), "`images`"),
    ] {
        check(kind, row, true, place);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_error_of_a_media_column_suggests_renaming_it_for_rewards() {
    let row = json!({"prompt": "a", "image": "x.png"});
    let words = "d.jsonl, line 2: `image` = \"x.png\", but Lockstep's models read only text: remove the row or the \
                 column. If only reward functions need it, rename it, as in columns = { my_image = \"image\" }";
    assert_eq!(read(Kind::Online, &row, &[]).unwrap_err(), words);
    let parts = json!({"prompt": [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "video"}]}]});
    let words = "d.jsonl, line 2: `prompt`: message 2 has a part of type `video`, but Lockstep's models read only \
                 text: remove the part or the row";
    assert_eq!(read(Kind::Online, &parts, &[]).unwrap_err(), words);
    // The first row does not have the column.
    let error = read(Kind::Online, &row, &[("my_image", "image")]).unwrap_err();
    assert!(error.starts_with("d.jsonl, line 1: no column `image`"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d.jsonl");
    std::fs::write(&path, format!("{row}\n")).unwrap();
    read_file(Kind::Online, &path, &[("my_image", "image")]).unwrap();
}

/// Files as Hugging Face's datasets writes them (conformance/parquet_fixtures.py); the second row has an image.
#[cfg(feature = "parquet")]
#[test]
fn images_in_parquet_are_refused_with_their_row() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parquet");
    for (file, column) in [
        ("image.parquet", Some("`image` = \"plain\"")),
        ("stored-0.parquet", Some("`image` = {\"bytes\":null,\"path\":\"x.png\"}")),
        ("stored-1.parquet", Some("`images` = [{\"bytes\":\"<svg/>\",\"path\":null}]")),
        ("stored-2.parquet", Some("`figure` = {\"bytes\":\"<svg/>\",\"path\":\"x.svg\"}")),
        ("stored-3.parquet", None),
        ("stored-4.parquet", None),
        ("stored-5.parquet", None),
    ] {
        let found = read_file(Kind::Online, &fixtures.join(file), &[]).map_err(|error| error.to_string());
        match (column, found) {
            (None, found) => found.unwrap(),
            // The second row of this file has bytes that are not UTF-8, so the whole file is refused.
            (Some(_), Err(error)) if file == "image.parquet" => {
                assert!(error.contains("row 2: column `image`"), "{error}")
            }
            (Some(column), found) => {
                let error = found.unwrap_err();
                assert!(error.contains(&format!("{file}, row 2: {column}")), "{error}");
            }
        }
    }
}
