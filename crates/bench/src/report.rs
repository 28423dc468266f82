//! The report of a benchmark: the machine and a table, as text or as JSON.

use kernels::ceilings::Ceilings;
use kernels::{Context, DType, Device};
use serde_json::{Map, Value, json};
use std::time::Duration;
use telemetry::{Align, CpuTimes, Table};

/// The device that computes, with its measured peaks.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The name of the device, from [`Context::describe`].
    pub device: &'static str,
    /// Number of threads.
    pub threads: usize,
    /// The peaks of multiply-adds and of memory reads, measured at the start of the benchmark.
    pub ceilings: Ceilings,
    /// The load from other processes while the peaks were measured, per core; `None` if the system does not report the
    /// load.
    pub load: Option<f64>,
}

impl Machine {
    /// Measures the peaks of the device of `ctx`, which takes about a second.
    pub fn measure(ctx: &Context) -> kernels::Result<Machine> {
        let before = CpuTimes::now();
        let ceilings = kernels::ceilings::measure(ctx, Duration::from_secs(1))?;
        let load = before.load_until(&CpuTimes::now());
        Ok(Machine { device: ctx.describe(), threads: ctx.threads(), ceilings, load })
    }

    /// Replaces the peak by the peak of matmuls in `dtype`, which is the peak of AMX tiles if these matmuls use AMX.
    pub fn with_dtype(self, dtype: DType) -> Machine {
        Machine { ceilings: self.ceilings.for_dtype(dtype), ..self }
    }

    /// `flops_per_s` as a percentage of the peak of multiply-adds.
    pub fn flops_percent(&self, flops_per_s: f64) -> f64 {
        100.0 * flops_per_s / self.ceilings.flops_per_s
    }

    /// `bytes_per_s` as a percentage of the peak of memory reads.
    pub fn bandwidth_percent(&self, bytes_per_s: f64) -> f64 {
        100.0 * bytes_per_s / self.ceilings.read_bytes_per_s
    }

    /// The minimum seconds for work with this many FLOPs and bytes: the larger of FLOPs / peak and bytes / peak.
    pub fn roofline_s(&self, flops: f64, bytes: f64) -> f64 {
        (flops / self.ceilings.flops_per_s).max(bytes / self.ceilings.read_bytes_per_s)
    }

    /// The machine and its peaks as JSON.
    pub fn json(&self) -> Value {
        json!({
            "isa": self.device,
            "emulated": self.is_emulated(),
            "threads": self.threads,
            "ceiling_flops_per_s": self.ceilings.flops_per_s,
            "ceiling_read_bytes_per_s": self.ceilings.read_bytes_per_s,
            "ceiling_load": self.load,
        })
    }

    /// Whether the device is a GPU emulated on the CPU.
    fn is_emulated(&self) -> bool {
        self.device == Device::CudaEmulated.name()
    }

    fn line(&self) -> String {
        let own = Some(self.ceilings.flops_per_s);
        let (tiles, pairs) = (self.ceilings.tile_flops_per_s == own, self.ceilings.pair_flops_per_s == own);
        let busy = self.load.filter(|load| *load >= CpuTimes::QUIET).map_or(String::new(), |load| {
            format!(
                " · other processes used {:.0} % of CPU time during the measurement: the true ceilings are higher",
                100.0 * load
            )
        });
        format!(
            "{} · {} threads · ceilings measured now: {:.0} GFLOP/s of {}, {:.1} GB/s of {}{busy}{}",
            self.device,
            self.threads,
            self.ceilings.flops_per_s / 1e9,
            match (tiles, pairs) {
                (true, _) => "bf16 matmuls on tiles",
                (_, true) => "instructions for bf16 dot products",
                _ => "f32 multiply-adds",
            },
            self.ceilings.read_bytes_per_s / 1e9,
            if self.device.starts_with("cuda") { "copies (reads + writes)" } else { "memory reads" },
            if self.is_emulated() { " · EMULATED: these times are not the speed of a GPU" } else { "" },
        )
    }
}

/// A column of the table: its key in JSON, its heading, and the number of decimals.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// The key in JSON.
    pub key: &'static str,
    /// The heading in the text table.
    pub heading: &'static str,
    /// The number of decimals in the text table.
    pub decimals: usize,
}

/// Shorthand for a [`Column`].
pub const fn column(key: &'static str, heading: &'static str, decimals: usize) -> Column {
    Column { key, heading, decimals }
}

/// A table of figures, with the machine on which they were measured.
#[derive(Clone, Debug)]
pub struct Report {
    name: &'static str,
    machine: Machine,
    columns: Vec<Column>,
    rows: Vec<Vec<Value>>,
    notes: Vec<String>,
}

impl Report {
    /// A report without rows.
    pub fn new(name: &'static str, machine: Machine, columns: &[Column]) -> Report {
        Report { name, machine, columns: columns.to_vec(), rows: Vec::new(), notes: Vec::new() }
    }

    /// Adds a row: one value for each column, null for an empty cell.
    pub fn row(&mut self, values: impl IntoIterator<Item = Value>) {
        let row: Vec<Value> = values.into_iter().collect();
        assert_eq!(row.len(), self.columns.len(), "{}", self.name);
        self.rows.push(row);
    }

    /// Adds a line of text below the table.
    pub fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// The report as JSON.
    pub fn json(&self) -> Value {
        let row = |row: &Vec<Value>| -> Value {
            let pairs = self.columns.iter().zip(row);
            Value::Object(pairs.map(|(c, v)| (c.key.to_owned(), v.clone())).collect::<Map<_, _>>())
        };
        let mut all = self.machine.json();
        all["benchmark"] = json!(self.name);
        all["rows"] = self.rows.iter().map(row).collect();
        all["notes"] = json!(self.notes);
        all
    }

    /// The report as text, for a terminal of `width` columns.
    pub fn text(&self, width: usize) -> String {
        let numeric = |i: usize| self.rows.iter().any(|row| row[i].is_number());
        let align = |i| if numeric(i) { Align::Right } else { Align::Left };
        let mut table = Table::new(self.columns.iter().enumerate().map(|(i, c)| (c.heading, align(i))));
        for row in &self.rows {
            table.row(row.iter().zip(&self.columns).map(|(value, column)| cell(value, column.decimals)));
        }
        let notes: String = self.notes.iter().map(|note| format!("{note}\n")).collect();
        format!("{}: {}\n{}{notes}", self.name, self.machine.line(), table.render(width))
    }
}

fn cell(value: &Value, decimals: usize) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(n) if n.is_f64() => format!("{:.decimals$}", n.as_f64().unwrap_or(f64::NAN)),
        other => other.to_string(),
    }
}
