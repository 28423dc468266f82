//! Writes model directories.

use super::direct::DirectFile;
use super::model_files::{CONFIG, GENERATION_CONFIG, ModelFiles};
use super::safetensors::{header, narrowed};
use super::{CHECKSUM, TensorSource, TensorSpec, ZERO_CHECKSUM, find_checksum};
use crate::{Error, FileDType, ModelConfig, Result};
use serde_json::{Map, Value, json};
use std::hash::Hasher;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use twox_hash::XxHash3_64;

/// Options for writing weights.
#[derive(Clone, Copy, Debug)]
pub struct SaveOptions {
    /// Dtype of the tensors in the file; f32 keeps every bit of the weights.
    pub dtype: FileDType,
    /// Maximum size of the tensors in one file, in bytes (unless a single tensor is larger).
    pub max_shard_bytes: u64,
}

impl SaveOptions {
    /// Options with the smallest dtype that keeps every bit of the weights: the dtype that the model computes in.
    pub fn exact(config: &ModelConfig) -> SaveOptions {
        let dtype = if config.compute == kernels::DType::Bf16 { FileDType::Bf16 } else { FileDType::F32 };
        SaveOptions { dtype, ..SaveOptions::default() }
    }
}

impl Default for SaveOptions {
    fn default() -> SaveOptions {
        SaveOptions { dtype: FileDType::F32, max_shard_bytes: 5_000_000_000 }
    }
}

/// Maximum number of characters of a file's name that are repeated in its temporary name, because the name may already
/// have the maximum length.
pub const PARTIAL_NAME: usize = 200;

/// A file being written, whose earlier bytes can be patched.
pub trait WriteSeek: Write + Seek {}
impl<T: Write + Seek> WriteSeek for T {}

/// Writes a file under a temporary name, flushes it to the disk, and then renames it.
///
/// A reader of `path` sees either the old file or the complete new one, even after a power failure.
pub fn write_atomically(path: &Path, write: impl FnOnce(&mut dyn WriteSeek) -> Result<()>) -> Result<()> {
    let fail = |e| Error::io(path, e);
    let name = path.file_name().ok_or_else(|| Error::file(path, "is not a file name"))?;
    sweep_partial(path);
    let temporary = path.with_file_name(format!(".{}.{}.partial", name.to_string_lossy(), std::process::id()));
    let attempt = || {
        let mut file = DirectFile::create(&temporary).map_err(fail)?;
        let _writing = lock_partial(&temporary);
        write(&mut file)?;
        file.finish().map_err(fail)?;
        disk::rename(&temporary, path).map_err(fail)?;
        sync_directory(path.parent().unwrap_or(Path::new(".")))
    };
    attempt().inspect_err(|_| {
        // A failure to remove the file must not hide the first error.
        let _ = disk::remove_file(&temporary);
    })
}

/// Locks a temporary file or directory while it is being written, so that [`sweep_partial`] in another container or on
/// another machine, where this process is not visible, does not remove it. Returns `None` on a file system without
/// locks.
pub fn lock_partial(path: &Path) -> Option<std::fs::File> {
    disk::open(path).or_else(|_| disk::open_dir(path)).ok().filter(|file| file.try_lock().is_ok())
}

/// Removes temporary files and directories that terminated processes left in the directory of `path`. Their names are
/// `.NAME.PID.partial`, possibly with something between PID and `partial`. Errors are ignored.
pub fn sweep_partial(path: &Path) {
    // Older versions do not lock the files that they write. So a PID listed in `/proc` is also treated as a lock.
    let (Some(name), true) = (path.file_name(), Path::new("/proc/self").exists()) else { return };
    // Temporary names contain only the first characters of a long name.
    let start: String = format!(".{}", name.to_string_lossy()).chars().take(PARTIAL_NAME + 1).collect();
    let directory = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    for entry in disk::read_dir(directory).into_iter().flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        let rest = file.strip_prefix(&start).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(".partial"));
        let pid = rest.and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
        if (entry.is_dir() || entry.is_file())
            && pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
            && let Some(_left_behind) = lock_partial(&entry.path())
        {
            let _ = if entry.is_dir() { disk::remove_dir_all(entry.path()) } else { disk::remove_file(entry.path()) };
        }
    }
}

/// Flushes the directory, so that renames in it are durable.
pub(super) fn sync_directory(dir: &Path) -> Result<()> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    disk::sync_dir(dir).map_err(|e| Error::io(dir, e))
}

/// Writes a model directory that transformers and this crate can load: configuration, weights, generation config, and
/// the files copied from another directory, if given (with its generation config).
pub fn save_model(
    dir: &Path,
    config: &ModelConfig,
    source: &dyn TensorSource,
    copied: Option<&ModelFiles>,
    options: SaveOptions,
) -> Result<()> {
    disk::create_dir_all(dir).map_err(|e| Error::io(dir, e))?;
    write_json(&dir.join(CONFIG), &Value::Object(config_json(config, options.dtype)))?;
    save_weights(dir, source, options)?;
    copied.map_or(Ok(()), |copied| copied.write(dir))?;
    if !dir.join(GENERATION_CONFIG).exists() {
        write_json(&dir.join(GENERATION_CONFIG), &generation_json(config))?;
    }
    Ok(())
}

/// Writes all tensors of `source` to one safetensors file.
pub fn save_tensors(path: &Path, source: &dyn TensorSource, dtype: FileDType) -> Result<()> {
    save_tensors_with(path, source, dtype, &[])
}

/// Like [`save_tensors`], with additional entries in the file's metadata.
pub(crate) fn save_tensors_with(
    path: &Path,
    source: &dyn TensorSource,
    dtype: FileDType,
    metadata: &[(&str, &str)],
) -> Result<()> {
    write_file(path, &source.tensors(), source, dtype, metadata)
}

pub(crate) fn write_json(path: &Path, json: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(json).expect("a JSON value can be serialised") + "\n";
    write_atomically(path, |out| out.write_all(text.as_bytes()).map_err(|e| Error::io(path, e)))
}

impl ModelFiles {
    /// Writes the files of a saved model other than its configuration.
    pub(super) fn write(&self, dir: &Path) -> Result<()> {
        self.write_those(dir, |name| name != CONFIG)
    }

    /// Writes the files of the tokenizer and the chat templates to `dir`.
    pub fn write_tokenizer(&self, dir: &Path) -> Result<()> {
        self.write_those(dir, |name| name != CONFIG && name != GENERATION_CONFIG)
    }

    fn write_those(&self, dir: &Path, which: impl Fn(&str) -> bool) -> Result<()> {
        self.all().filter(|(name, _)| which(name)).try_for_each(|(name, bytes)| {
            let path = dir.join(name);
            let folder = path.parent().unwrap_or(dir);
            disk::create_dir_all(folder).map_err(|e| Error::io(folder, e))?;
            write_atomically(&path, |out| out.write_all(bytes).map_err(|e| Error::io(&path, e)))
        })
    }
}

/// The configuration as it was read, with the dtype of the weights that are written.
fn config_json(config: &ModelConfig, dtype: FileDType) -> Map<String, Value> {
    let mut json = config.raw.clone();
    name_dtype(&mut json, dtype);
    json.entry("architectures").or_insert_with(|| json!([config.family.architecture]));
    json
}

/// Sets the dtype in a `config.json`, under the key that the file already uses.
pub(super) fn name_dtype(json: &mut Map<String, Value>, dtype: FileDType) {
    let key = if json.contains_key("torch_dtype") && !json.contains_key("dtype") { "torch_dtype" } else { "dtype" };
    json.insert(key.into(), dtype.config_name().into());
}

fn generation_json(config: &ModelConfig) -> Value {
    let eos = match config.eos_token_ids[..] {
        [] => Value::Null,
        [one] => one.into(),
        ref several => json!(several),
    };
    json!({
        "_from_model_config": true,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos,
        "pad_token_id": config.pad_token_id,
    })
}

pub(super) fn save_weights(dir: &Path, source: &dyn TensorSource, options: SaveOptions) -> Result<()> {
    let specs = source.tensors();
    let bytes = |s: &TensorSpec| (s.shape.iter().product::<usize>() * options.dtype.bytes()) as u64;
    let mut shards: Vec<Vec<TensorSpec>> = vec![vec![]];
    let mut filled = 0;
    for spec in &specs {
        if filled > 0 && filled + bytes(spec) > options.max_shard_bytes {
            shards.push(vec![]);
            filled = 0;
        }
        filled += bytes(spec);
        shards.last_mut().expect("never empty").push(spec.clone());
    }
    let total: u64 = specs.iter().map(bytes).sum();
    let count = shards.len();
    let name = |i: usize| match count {
        1 => "model.safetensors".to_owned(),
        n => format!("model-{:05}-of-{n:05}.safetensors", i + 1),
    };
    let mut map = Map::new();
    for (i, shard) in shards.iter().enumerate() {
        write_file(&dir.join(name(i)), shard, source, options.dtype, &[])?;
        map.extend(shard.iter().map(|s| (s.name.clone(), name(i).into())));
    }
    let index = "model.safetensors.index.json";
    if count > 1 {
        write_json(&dir.join(index), &json!({"metadata": {"total_size": total}, "weight_map": map}))?;
    }
    // Files of an earlier save would otherwise be read instead of the new ones, or together with them.
    let mine: Vec<String> = (0..count).map(name).collect();
    for entry in disk::read_dir(dir).map_err(|e| Error::io(dir, e))? {
        let file = entry.file_name().to_string_lossy();
        let weights = file == "model.safetensors" || file.starts_with("model-") && file.ends_with(".safetensors");
        if weights && !mine.iter().any(|m| *m == file) || file == index && count == 1 {
            let path = dir.join(&*file);
            disk::remove_file(&path).map_err(|e| Error::io(&path, e))?;
        }
    }
    sync_directory(dir)
}

/// Writes one safetensors file. The checksum is computed along the way and written into the header at the end.
fn write_file(
    path: &Path,
    specs: &[TensorSpec],
    source: &dyn TensorSource,
    dtype: FileDType,
    metadata: &[(&str, &str)],
) -> Result<()> {
    let metadata: Vec<_> = metadata.iter().copied().chain([(CHECKSUM, ZERO_CHECKSUM)]).collect();
    write_atomically(path, |out| {
        let fail = |e| Error::io(path, e);
        let mut hash = XxHash3_64::default();
        let mut put = |out: &mut dyn WriteSeek, bytes: &[u8]| {
            hash.write(bytes);
            out.write_all(bytes).map_err(fail)
        };
        let header = header(specs, dtype, &metadata);
        put(out, &header)?;
        let mut room = Vec::new();
        for spec in specs {
            let mut count = 0;
            source.read(&spec.name, &mut |piece| {
                let Some(bytes) = narrowed(piece, dtype, &mut room) else {
                    let message = format!("has an element that is too large for {}", dtype.config_name());
                    return Err(Error::tensor(path, &spec.name, message));
                };
                count += piece.len();
                put(out, bytes)
            })?;
            let expected: usize = spec.shape.iter().product();
            if count != expected {
                let message = format!("has {count} elements, but its shape {:?} has {expected}", spec.shape);
                return Err(Error::tensor(path, &spec.name, message));
            }
        }
        let at = find_checksum(&header).expect("the header contains the zero checksum").start;
        out.seek(SeekFrom::Start(at as u64)).map_err(fail)?;
        out.write_all(format!("{:016x}", hash.finish()).as_bytes()).map_err(fail)
    })
}
