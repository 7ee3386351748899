//! A model from wherever its bytes are: a path, a part of an open file, memory. The same bits from each, and a typed error
//! for parts that aren't there.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use selvedge::{
    CancelToken, Engine, Error, Held, HoldBytes, LoadStage, Model, ModelError, ModelFile, ModelOptions, ModelSource, PackOptions,
    StepError, open_text_source, pack_to, plan_source,
};
use selvedge_tests::{Setup, case, hash, tiny_tokens};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sources").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn options(dir: Option<&Path>) -> ModelOptions {
    let mut options = Setup { n_ctx: 64, chunk: 16, ..Setup::default() }.options();
    options.packs = PackOptions { dir: dir.map(Path::to_owned), limit: None };
    options
}

/// Bytes that begin `shift` bytes after an aligned place.
#[derive(Debug)]
struct Shifted {
    buffer: Vec<u8>,
    start: usize,
}

impl Shifted {
    fn new(bytes: &[u8], shift: usize) -> Shifted {
        let mut buffer = vec![0; bytes.len() + 128];
        let start = buffer.as_ptr().align_offset(64) + shift;
        buffer[start..start + bytes.len()].copy_from_slice(bytes);
        buffer.truncate(start + bytes.len());
        Shifted { buffer, start }
    }
}

impl HoldBytes for Shifted {
    fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..]
    }
}

fn memory(bytes: &[u8], shift: usize) -> ModelSource {
    ModelSource::Bytes(Arc::new(Shifted::new(bytes, shift)))
}

/// An archive: other bytes before and after the model.
fn part(folder: &Path, bytes: &[u8], start: usize) -> ModelSource {
    let path = folder.join(format!("archive-{start}"));
    let mut archive = vec![0xa5; start];
    archive.extend_from_slice(bytes);
    archive.extend_from_slice(&[0x5a; 777]);
    std::fs::write(&path, archive).unwrap();
    ModelSource::File { file: Arc::new(File::open(&path).unwrap()), start: start as u64, n_bytes: Some(bytes.len() as u64) }
}

fn open(source: &ModelSource, options: &ModelOptions) -> (Model, Vec<LoadStage>) {
    let mut stages = Vec::new();
    let model = Model::open_source(source, options, &CancelToken::new(), &mut |stage, _, _| stages.push(stage)).unwrap();
    (model, stages)
}

fn bits(model: &Model) -> String {
    let tokens = tiny_tokens(23, 1);
    hash(&mut Engine::new(model.inner().clone()).unwrap(), &tokens, 16, &(0..tokens.len()))
}

#[test]
fn a_model_has_the_same_bits_from_wherever_it_comes() {
    let Some(cases) = case("arch") else { return };
    let folder = folder("bits");
    for name in ["llama_q4.q4", "gemma3.f32", "qwen2.q8"].map(|name| cases.join(format!("{name}.gguf"))) {
        let bytes = std::fs::read(&name).unwrap();
        let expected = bits(&Model::open(&name, &options(None)).unwrap());
        for shift in [0, 1, 4, 32] {
            let (model, _) = open(&memory(&bytes, shift), &options(Some(&folder)));
            assert_eq!(bits(&model), expected, "{} in memory, {shift} bytes off", name.display());
            assert_eq!(model.plan().held, Held::Resident);
            assert!(model.notes().is_empty() && model.packs().next().is_none());
        }
        for start in [0, 1, 4, 4096, 5000] {
            let (model, _) = open(&part(&folder, &bytes, start), &options(None));
            assert_eq!(bits(&model), expected, "{} from byte {start} on", name.display());
            assert!(model.plan().mapped >= bytes.len() as u64);
        }
    }
    let made = std::fs::read_dir(&folder).unwrap().filter(|e| e.as_ref().unwrap().path().extension().is_some()).count();
    assert_eq!(made, 0, "nothing is kept of what lies in memory");
}

#[test]
fn a_part_of_a_file_has_a_pack_of_its_own_that_is_found_again() {
    let Some(cases) = case("arch") else { return };
    let folder = folder("packs");
    let (a, b) = (std::fs::read(cases.join("llama_q4.q4.gguf")).unwrap(), std::fs::read(cases.join("gemma3.f32.gguf")).unwrap());
    let archive = folder.join("archive");
    std::fs::write(&archive, [&a[..], &b[..]].concat()).unwrap();
    let file = Arc::new(File::open(&archive).unwrap());
    let at = |start: usize, n: Option<usize>| ModelSource::File { file: file.clone(), start: start as u64, n_bytes: n.map(|n| n as u64) };
    let store = folder.join("store");
    let mut kept = options(Some(&store));
    kept.plan.weights = selvedge::Weights::Mapped;
    let mut seen = Vec::new();
    for source in [at(0, Some(a.len())), at(a.len(), None)] {
        let (first, stages) = open(&source, &kept);
        assert!(stages.contains(&LoadStage::Hash) && stages.contains(&LoadStage::Pack), "{stages:?}");
        let (again, stages) = open(&source, &kept);
        assert!(!stages.contains(&LoadStage::Hash) && !stages.contains(&LoadStage::Pack), "{stages:?}");
        assert_eq!(again.plan().held, Held::Mapped);
        assert_eq!(bits(&first), bits(&again));
        seen.push(bits(&again));
    }
    assert_ne!(seen[0], seen[1]);
    // The same bytes by path are the same model: hashed, then found.
    let (_, stages) = open(&cases.join("llama_q4.q4.gguf").into(), &kept);
    assert!(stages.contains(&LoadStage::Hash) && !stages.contains(&LoadStage::Pack), "{stages:?}");
}

#[test]
fn shipped_packs_are_used_where_they_lie_and_copied_where_kernels_could_not_read_them() {
    let Some(cases) = case("arch") else { return };
    let folder = folder("shipped");
    let plain = cases.join("llama_q4.q4.gguf");
    let shipped = folder.join("shipped.gguf");
    pack_to(&plain, &shipped, &options(None), &CancelToken::new(), &mut |_, _, _| {}).unwrap();
    let bytes = std::fs::read(&shipped).unwrap();
    let expected = bits(&Model::open(&plain, &options(None)).unwrap());
    for shift in [0, 1, 8, 63] {
        let mut options = options(None);
        options.plan.weights = selvedge::Weights::Mapped;
        let held = if shift == 0 { Held::Mapped } else { Held::Resident };
        for source in [memory(&bytes, shift), part(&folder, &bytes, 4096 + shift)] {
            let planned = plan_source(&source, &options).unwrap().plan;
            assert_eq!(planned.held, held, "{shift}: {}", planned.held_why);
            assert_eq!(planned.anonymous.pack > 0, shift > 0);
            let (model, _) = open(&source, &options);
            assert_eq!(bits(&model), expected, "{shift} bytes off");
        }
    }
}

#[test]
fn parts_that_are_not_there_are_refused() {
    let Some(cases) = case("arch") else { return };
    let folder = folder("outside");
    let bytes = std::fs::read(cases.join("llama_q4.q4.gguf")).unwrap();
    let path = folder.join("model");
    std::fs::write(&path, &bytes).unwrap();
    let file = Arc::new(File::open(&path).unwrap());
    let len = bytes.len() as u64;
    for (start, n_bytes) in
        [(0, Some(len + 1)), (len + 1, None), (1, Some(len)), (u64::MAX, Some(1)), (u64::MAX, None), (len, Some(1)), (3, Some(u64::MAX))]
    {
        let error = ModelFile::open_source(&ModelSource::File { file: file.clone(), start, n_bytes }).unwrap_err();
        assert!(matches!(error, ModelError::NoSuchPart { file_len, .. } if file_len == len), "{error}");
        assert!(error.to_string().contains(&len.to_string()), "{error}");
    }
    // Parts that are there and hold no model.
    for (start, n_bytes) in [(len, None), (0, Some(0)), (0, Some(len / 2)), (1, None)] {
        let error = ModelFile::open_source(&ModelSource::File { file: file.clone(), start, n_bytes }).unwrap_err();
        assert!(matches!(error, ModelError::Gguf { .. }), "{error}");
    }
    for bytes in [&bytes[..0], &bytes[..100], b"not a model"] {
        let error = open_text_source(&memory(bytes, 0)).unwrap_err();
        assert!(error.to_string().starts_with("a model in memory: "), "{error}");
    }
    #[cfg(unix)]
    {
        let pipe = File::from(std::os::fd::OwnedFd::from(std::os::unix::net::UnixStream::pair().unwrap().0));
        let error = ModelFile::open_source(&ModelSource::File { file: Arc::new(pipe), start: 0, n_bytes: None }).unwrap_err();
        assert!(matches!(error, ModelError::NotAFile { .. }), "{error}");
    }
}

#[test]
fn a_split_set_needs_a_path() {
    let Some(cases) = case("hostile") else { return };
    let bytes = std::fs::read(cases.join("s1-00001-of-00002.gguf")).unwrap();
    let error = ModelFile::open_source(&memory(&bytes, 0)).unwrap_err();
    assert!(matches!(error, ModelError::SplitWithoutPath { n_parts: 2 }), "{error}");
}

#[test]
fn a_part_of_a_file_that_changes_is_an_error_at_the_next_step() {
    let Some(cases) = case("arch") else { return };
    let folder = folder("changed");
    let bytes = std::fs::read(cases.join("llama_q4.q4.gguf")).unwrap();
    let source = part(&folder, &bytes, 100);
    let (model, _) = open(&source, &options(None));
    let mut session = model.session().unwrap();
    let cancel = CancelToken::new();
    session.logits(&tiny_tokens(5, 0), 8, &cancel, &mut |_, _| {}).unwrap();
    std::fs::OpenOptions::new().write(true).open(folder.join("archive-100")).unwrap().set_len(bytes.len() as u64 + 900).unwrap();
    let error = session.logits(&tiny_tokens(5, 0), 8, &cancel, &mut |_, _| {}).unwrap_err();
    assert!(matches!(Error::from(error), Error::Session(selvedge::SessionError::Step(StepError::Model(ModelError::Changed { .. })))));
}
