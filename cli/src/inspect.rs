//! `inspect`: what a GGUF file says of itself. Works on any file of the format, also on one that can't be run.

use crate::error::{Result, printable};
use crate::models;
use crate::output;
use clap::Args;
use selvedge::ModelFile;
use selvedge::gguf::{Array, Endian, Gguf, TensorInfo, Value};
use serde_json::{Map, Value as Json, json};
use std::path::PathBuf;

/// Elements of an array that are shown.
const SHOWN: usize = 8;
/// Characters of a text that are shown to people.
const SHOWN_CHARS: usize = 100;

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// A GGUF file, of a split set the part to look into, or the short name of a pulled model
    file: PathBuf,
}

impl InspectArgs {
    pub(crate) fn run(self, json: bool) -> Result<()> {
        let path = models::resolve(Some(&self.file))?;
        let file = ModelFile::open_alone(&path)?;
        let gguf = file.gguf()?;
        if json { output::json(&to_json(&path, &gguf)) } else { output::lines(&table(&path, &gguf)) }
    }
}

fn endian(gguf: &Gguf<'_>) -> &'static str {
    match gguf.endian {
        Endian::Little => "little",
        Endian::Big => "big",
    }
}

fn dims<'a>(t: &'a TensorInfo<'_>) -> &'a [u64] {
    &t.dims[..t.n_dims]
}

fn to_json(path: &std::path::Path, gguf: &Gguf<'_>) -> Json {
    let metadata: Map<String, Json> = gguf.metadata.iter().map(|(key, value)| (key.to_owned(), value_json(value))).collect();
    let tensor =
        |t: &TensorInfo<'_>| json!({ "name": t.name, "type": t.ty.to_string(), "dims": dims(t), "offset": t.offset, "bytes": t.n_bytes });
    json!({
        "file": path.display().to_string(),
        "version": gguf.version,
        "endian": endian(gguf),
        "alignment": gguf.alignment,
        "data_start": gguf.data_start,
        "metadata": metadata,
        "tensors": gguf.tensors.iter().map(tensor).collect::<Vec<_>>(),
    })
}

/// JSON has no infinities: a float that isn't finite is a text.
fn float(x: f64) -> Json {
    serde_json::Number::from_f64(x).map_or_else(|| Json::String(x.to_string()), Json::Number)
}

/// Scalars whole; arrays by type, length and first elements. Nesting is bounded by the reader.
fn value_json(value: Value<'_>) -> Json {
    match value {
        Value::U8(x) => json!(x),
        Value::I8(x) => json!(x),
        Value::U16(x) => json!(x),
        Value::I16(x) => json!(x),
        Value::U32(x) => json!(x),
        Value::I32(x) => json!(x),
        Value::U64(x) => json!(x),
        Value::I64(x) => json!(x),
        Value::Bool(x) => json!(x),
        // The shortest decimal that gives the same f32.
        Value::F32(x) => x.to_string().parse().map_or_else(|_| float(x.into()), float),
        Value::F64(x) => float(x),
        Value::String(bytes) => Json::String(String::from_utf8_lossy(bytes).into_owned()),
        Value::Array(array) => json!({
            "type": array.elem_type().name(),
            "len": array.len(),
            "first": array.iter().take(SHOWN).map(value_json).collect::<Vec<_>>(),
        }),
    }
}

/// A text on one line: quoted, shortened, nothing in it that a terminal obeys.
fn quoted(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let short: String = text.chars().take(SHOWN_CHARS).collect();
    let more = if short.len() < text.len() { format!("... ({} bytes)", bytes.len()) } else { String::new() };
    format!("{short:?}{more}")
}

fn value_text(value: Value<'_>) -> String {
    match value {
        Value::String(bytes) => quoted(bytes),
        Value::Array(array) => array_text(array),
        scalar => match value_json(scalar) {
            Json::String(text) => text,
            other => other.to_string(),
        },
    }
}

fn array_text(array: Array<'_>) -> String {
    let first: Vec<String> = array.iter().take(SHOWN).map(value_text).collect();
    let more = if array.len() > SHOWN { ", ..." } else { "" };
    format!("{} x {} [{}{more}]", array.len(), array.elem_type().name(), first.join(", "))
}

fn table(path: &std::path::Path, gguf: &Gguf<'_>) -> String {
    let mut out = format!(
        "{}: GGUF {}, {} endian, {} keys, {} tensors, alignment {}\n",
        printable(&path.display().to_string()),
        gguf.version,
        endian(gguf),
        gguf.metadata.len(),
        gguf.tensors.len(),
        gguf.alignment
    );
    let width = gguf.metadata.iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0).min(48);
    for (key, value) in gguf.metadata.iter() {
        out += &format!("{:<width$}  {:<6}  {}\n", printable(key), value.value_type().name(), value_text(value));
    }
    let width = gguf.tensors.iter().map(|t| t.name.chars().count()).max().unwrap_or(0).min(48);
    for t in &gguf.tensors {
        let dims = dims(t).iter().map(u64::to_string).collect::<Vec<_>>().join(" x ");
        out += &format!("{:<width$}  {:<8} {dims:<16} {:>12} bytes at {}\n", printable(t.name), t.ty.to_string(), t.n_bytes, t.offset);
    }
    out
}
