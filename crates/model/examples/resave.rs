//! Writes the files that `conformance/roundtrip.py` loads with transformers.
//!
//!     resave model IN OUT f32|bf16|f16 MAX_SHARD_BYTES     a model directory, loaded and saved again
//!     resave random CONFIG OUT SEED                        random weights of a config.json
//!     resave characters OUT                                a character tokenizer
//!     resave encode DIR TEXT…                              one line of ids for each text

use kernels::Device;
use kernels::Memory;
use model::io::{ModelFiles, SaveOptions, save_model};
use model::{Error, FileDType, ModelConfig, Result, SpecialTokens, Tokenizer, Weights};
use std::path::Path;
use std::sync::Arc;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let usage = || Error::Value("see the head of the source for usage".into());
    let memory = Memory::new(Device::Cpu);
    match args[..] {
        ["model", from, to, dtype, shard] => {
            let from = Path::new(from);
            let config = Arc::new(ModelConfig::load(&from.join("config.json"))?);
            let weights = Weights::load(&memory, from, &config)?;
            let dtype = match dtype {
                "f32" => FileDType::F32,
                "bf16" => FileDType::Bf16,
                "f16" => FileDType::F16,
                _ => return Err(usage()),
            };
            let options = SaveOptions { dtype, max_shard_bytes: shard.parse().map_err(|_| usage())? };
            save_model(Path::new(to), &config, &weights, Some(&ModelFiles::read(from)?), options)
        }
        ["random", config, to, seed] => {
            let config = Arc::new(ModelConfig::load(Path::new(config))?);
            let weights = Weights::random(&memory, &config, seed.parse().map_err(|_| usage())?)?;
            save_model(Path::new(to), &config, &weights, None, SaveOptions::default())
        }
        ["characters", to] => {
            let token = |t: &str| Some(t.to_owned());
            let special = SpecialTokens { pad: token("<pad>"), eos: token("<eos>"), ..SpecialTokens::default() };
            Tokenizer::characters("0123456789+-*/= \n\"'\\é".chars(), &special)?.save(Path::new(to))
        }
        ["encode", dir, ref texts @ ..] => {
            let tokenizer = Tokenizer::load(Path::new(dir))?;
            for text in texts {
                println!("{:?}", tokenizer.encode(text)?);
            }
            Ok(())
        }
        _ => Err(usage()),
    }
}
