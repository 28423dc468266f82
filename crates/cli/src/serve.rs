//! `lockstep serve`: an HTTP server with APIs compatible with OpenAI's and Tinker's.

use crate::options::{LogArgs, device, threads};
use crate::output;
use crate::signals::{Promise, stop_on_signals};
use kernels::Device;
use lockstep::error::{BadInput, OrBadInput};
use lockstep::service::{NamedDir, Service, ServiceOptions, ServiceSizes, ToolSupport, model_name};
use lockstep::{Stopped, bad_input, context};
use serve::{Access, Server};
use std::path::{Path, PathBuf};
use telemetry::Level;

/// The environment variable with the API key. A flag would show the key to other users in lists of processes.
const KEY_VARIABLE: &str = "LOCKSTEP_API_KEY";

/// Serves a model and its adapters over HTTP: completions by an API compatible with OpenAI's, and training and sampling
/// of LoRA adapters by the Tinker API.
///
/// A completion with a seed has the same tokens and log-probability bits alone and beside any other requests, and its
/// log-probabilities are those that training computes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A Hugging Face model directory, or a Hub id. NAME is the model's name in requests; the directory's own name, or
    /// the Hub id, if not given.
    #[arg(long, value_name = "[NAME=]DIR")]
    pub model: String,
    /// The PEFT directory of a LoRA adapter for the model, served under NAME; may be repeated.
    #[arg(long, value_name = "NAME=DIR")]
    pub adapter: Vec<String>,
    /// Allows adapters that were trained on other base weights.
    #[arg(long)]
    pub other_base: bool,
    /// The address to listen on; port 0 selects any free port. If other machines can reach it, an API key is required.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8000")]
    pub listen: String,
    /// A file with the API key that clients must send; else the environment variable LOCKSTEP_API_KEY, if set.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Another host and port under which clients reach the server, such as localhost:8888 for a forwarded port; may be
    /// repeated.
    #[arg(long, value_name = "HOST:PORT")]
    pub allow_host: Vec<String>,
    /// The dtype of matmuls.
    #[arg(long, value_parser = ["f32", "bf16"], default_value = "f32")]
    pub dtype: String,
    /// The seed of requests that have none. Their random numbers depend on this seed and on their order.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// The directory for models that clients train with the Tinker API. Saved states stay valid when the server
    /// restarts with the same directory.
    #[arg(long, value_name = "DIR", default_value = "serve-state")]
    pub state: PathBuf,
    /// Maximum number of tokens of a prompt with its completion; if not given, the model's context, or less if the KV
    /// cache has room for less.
    #[arg(long, value_name = "N")]
    pub max_model_len: Option<usize>,
    /// Maximum number of completions in a step of the engine.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub max_num_seqs: usize,
    /// Maximum number of completions that wait. Further requests get status 429.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub max_waiting: usize,
    /// The size of the KV cache in pages of 64 tokens; if not given, enough for --max-num-seqs completions of
    /// --max-model-len tokens, but at most a quarter of the available memory.
    #[arg(long, value_name = "N")]
    pub kv_cache_blocks: Option<usize>,
    /// The device: cpu, cuda, cuda:1, …; LOCKSTEP_DEVICE or the CPU if not given.
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    pub device: Option<Device>,
    /// Threads; all cores if not given.
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let options = options(&args)?;
    let access = Access { api_key: api_key(&args)?, allow_hosts: args.allow_host.clone() };
    // A port in use is reported before the model is loaded.
    let server = Server::bind(&args.listen, &access).map_err(BadInput::new)?;
    let ctx = context(args.device, args.threads, options.dtype)?;
    let service = Service::start(&ctx, &options, output::warn)?;
    let console = LogArgs::default().open()?;
    let stop = stop_on_signals(&console, Promise::Stops("the server completes open requests and exits"))?;
    output::mention(greeting(&service, &server.url, access.api_key.is_some()));
    let asked = stop.clone();
    let server = match Level::from_env().map_err(BadInput::new)? {
        Level::Debug => server.log_to(|line| output::note(line)),
        _ => server,
    };
    server.run(service, move || asked.is_requested())?;
    if stop.is_requested() { Err(Stopped.into()) } else { Ok(()) }
}

fn options(args: &Args) -> anyhow::Result<ServiceOptions> {
    let adapters = args.adapter.iter().map(|adapter| {
        let (name, dir) = adapter.split_once('=').ok_or_else(|| {
            BadInput::new(format!("--adapter {adapter}: expected NAME=DIR, where NAME is the model's name in requests"))
        })?;
        if !Path::new(dir).is_dir() {
            bad_input!("--adapter {adapter}: {dir} is not a directory; expected that of a PEFT adapter");
        }
        Ok(NamedDir { name: name.to_owned(), dir: dir.to_owned() })
    });
    Ok(ServiceOptions {
        model: named(&args.model),
        adapters: adapters.collect::<anyhow::Result<_>>()?,
        other_base: args.other_base,
        dtype: args.dtype.as_str().into(),
        max_model_len: args.max_model_len,
        max_num_seqs: args.max_num_seqs,
        max_waiting: args.max_waiting,
        kv_cache_blocks: args.kv_cache_blocks,
        seed: args.seed,
        state: args.state.clone(),
    })
}

/// Splits NAME=DIR, unless the whole text is a path.
fn named(text: &str) -> NamedDir {
    match text.split_once('=').filter(|_| !Path::new(text).exists()) {
        Some((name, dir)) => NamedDir { name: name.to_owned(), dir: dir.to_owned() },
        None => NamedDir { name: model_name(text), dir: text.to_owned() },
    }
}

/// The API key in the file or the environment variable.
fn api_key(args: &Args) -> anyhow::Result<Option<String>> {
    let (from, text) = match &args.api_key_file {
        Some(file) => {
            let from = format!("--api-key-file {}", file.display());
            let text = disk::read_to_string(file, disk::most::STATE).or_bad_input_in(&from)?;
            (from, text)
        }
        None => match std::env::var(KEY_VARIABLE) {
            Ok(text) => (format!("environment variable {KEY_VARIABLE}"), text),
            Err(std::env::VarError::NotPresent) => return Ok(None),
            Err(error) => bad_input!("environment variable {KEY_VARIABLE}: {error}"),
        },
    };
    let key = text.trim();
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        bad_input!("{from}: an API key must have one or more visible ASCII characters, without spaces");
    }
    Ok(Some(key.to_owned()))
}

/// The first lines: what is served, where, with how much memory, and how to connect.
fn greeting(service: &Service, url: &str, has_key: bool) -> String {
    let ServiceSizes { max_model_len, max_num_seqs, max_waiting, kv_cache_blocks, block_tokens, kv_cache_bytes } =
        service.sizes();
    let names: Vec<&str> = service.models().collect();
    let (model, key) = (names[0], if has_key { "$LOCKSTEP_API_KEY" } else { "none" });
    let tinker_key = if has_key { key } else { "tml-local" };
    let authorization = if has_key { " -H \"Authorization: Bearer $LOCKSTEP_API_KEY\"" } else { "" };
    let (path, input, call) = if service.has_chat_template() {
        let messages = "[{\"role\": \"user\", \"content\": \"Hello\"}]";
        (
            "chat/completions",
            format!("\"messages\": {messages}"),
            format!("chat.completions.create(model=\"{model}\", messages={messages})"),
        )
    } else {
        (
            "completions",
            "\"prompt\": \"Once upon a time\"".to_owned(),
            format!("completions.create(model=\"{model}\", prompt=\"Once upon a time\")"),
        )
    };
    let chat = match service.tools() {
        _ if !service.has_chat_template() => " (no chat template: text completions only)".to_owned(),
        ToolSupport::Unread => String::new(),
        ToolSupport::Text => " (calls of tools stay text: their format is unknown)".to_owned(),
        ToolSupport::Parsed(format) => format!(" (with tools, in the format of {})", format.name()),
    };
    format!(
        "{}\n\
         context {max_model_len} tokens · KV cache {kv_cache_blocks} pages of {block_tokens} tokens, {:.1} MiB · up to \
         {max_num_seqs} completions at once, {max_waiting} waiting\n\
         serving {}{chat} at {url}\n\n\
         curl {url}/v1/{path}{authorization} -H 'Content-Type: application/json' \\\n  \
         -d '{{\"model\": \"{model}\", {input}, \"seed\": 1}}'\n\
         OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={key} python3 -c 'import openai\n\
         print(openai.OpenAI().{call})'\n\
         TINKER_BASE_URL={url} TINKER_API_KEY={tinker_key} python3 -c 'import tinker\n\
         print(tinker.ServiceClient().create_lora_training_client(base_model=\"{model}\").result().get_info())'\n",
        service.description(),
        kv_cache_bytes as f64 / (1 << 20) as f64,
        names.join(", "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_named_by_its_directory_its_id_or_the_user() {
        let of = |text: &str| {
            let NamedDir { name, dir } = named(text);
            (name, dir)
        };
        let pair = |name: &str, dir: &str| (name.to_owned(), dir.to_owned());
        assert_eq!(of("Qwen/Qwen3-0.6B"), pair("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"));
        assert_eq!(of("a/b=models/x"), pair("a/b", "models/x"));
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("tiny=1");
        std::fs::create_dir(&dir).unwrap();
        let dir = dir.to_str().unwrap();
        assert_eq!(of(dir), pair("tiny=1", dir), "a path with = is a path if it exists");
    }
}
