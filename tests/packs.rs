//! Packed weights in files: the same bits however they are held, made once and shared, and whatever is wrong with a pack
//! is ignored, made again and told. Case 35 of CASES.md.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use selvedge::gguf::{Endian, Gguf, Writer};
use selvedge::{
    BackendOptions, CancelToken, Engine, Error, Held, LoadError, LoadStage, Model, ModelError, ModelFile, ModelOptions, PackOptions,
    PackStore, PlanError, PlanOptions, SeqId, StepError, TokenId, Weights, pack_to,
};
use selvedge_tests::{
    GEMMA, LogitsHash, SMOLLM2, Setup, case, feed, hash, in_own_process, real_model, rows, status_bytes, stem, synthetic, tiny_models,
    tiny_tokens,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

// ---------------------------------------------------------------------------------------------------------------------
// Tools.

/// An empty folder for a test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packs").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A copy that a test may spoil.
fn copy(from: &Path, to: &Path) {
    std::fs::write(to, std::fs::read(from).unwrap()).unwrap();
}

/// Names of the files in a folder that end in one of these.
fn names(folder: &Path, ends: &[&str]) -> Vec<String> {
    let all = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = all.filter(|name| ends.iter().any(|end| name.ends_with(end))).collect();
    names.sort();
    names
}

/// Nothing is left of packs that weren't finished.
fn no_leftovers(folder: &Path) {
    assert!(names(folder, &[".tmp"]).is_empty(), "{:?}", names(folder, &[""]));
}

fn options(weights: Weights, dir: Option<&Path>) -> ModelOptions {
    let mut options = Setup { n_ctx: 64, chunk: 16, ..Setup::default() }.options();
    options.plan.weights = weights;
    options.packs = PackOptions { dir: dir.map(Path::to_owned), limit: None };
    options
}

fn mapped(dir: &Path) -> ModelOptions {
    options(Weights::Mapped, Some(dir))
}

/// A model with what its load told.
struct Opened {
    model: Model,
    told: Vec<(LoadStage, u64, u64)>,
}

impl Opened {
    fn was(&self, stage: LoadStage) -> bool {
        self.told.iter().any(|told| told.0 == stage)
    }

    /// Stages that took their time, in their order.
    fn stages(&self) -> Vec<LoadStage> {
        let mut stages: Vec<LoadStage> = self.told.iter().map(|told| told.0).collect();
        stages.dedup();
        stages.retain(|stage| !matches!(stage, LoadStage::Tokenizer | LoadStage::Ready));
        stages
    }

    fn pack(&self) -> PathBuf {
        self.model.packs().next().expect("a pack is mapped").to_owned()
    }
}

/// Bytes only grow, and reach those in all; a stage comes once.
fn check_progress(told: &[(LoadStage, u64, u64)]) {
    let mut seen: Vec<LoadStage> = Vec::new();
    for part in told.chunk_by(|a, b| a.0 == b.0) {
        let (stage, _, total) = part[0];
        assert!(!seen.contains(&stage), "{stage:?} came twice: {told:?}");
        seen.push(stage);
        assert!(part.iter().all(|told| told.2 == total && told.1 <= total), "{part:?}");
        assert!(part.is_sorted_by_key(|told| told.1), "{part:?}");
        assert!(stage == LoadStage::Tokenizer || part.last().unwrap().1 == total, "{part:?}");
    }
    assert_eq!(seen.last(), Some(&LoadStage::Ready));
}

fn open(path: &Path, options: &ModelOptions) -> Opened {
    let mut told = Vec::new();
    let model = Model::open_with(path, options, &CancelToken::new(), &mut |stage, done, total| told.push((stage, done, total)));
    let model = model.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    check_progress(&told);
    Opened { model, told }
}

/// Hash of the logits of some tokens.
fn bits(model: &Model) -> String {
    let tokens = if model.n_vocab() < 1000 { tiny_tokens(23, 1) } else { synthetic(12, None) };
    hash(&mut Engine::new(model.inner().clone()).unwrap(), &tokens, 16, &(0..tokens.len()))
}

/// The only note of a model, which must have these words.
fn told_once(model: &Model, words: &[&str]) {
    let [note] = model.notes() else { panic!("one note, not {:?}", model.notes()) };
    assert!(words.iter().all(|w| note.contains(w)) && !note.contains('\n'), "{note}");
}

fn hostile(name: &str) -> Option<PathBuf> {
    Some(case("hostile")?.join(name))
}

/// The tiny model of most tests: tied, in blocks of 8 bits.
fn tiny() -> Option<PathBuf> {
    hostile("m02_valid_tiny_q8_0.gguf")
}

// ---------------------------------------------------------------------------------------------------------------------
// The same bits.

/// Every way to hold the weights of a model.
fn check_ways(path: &Path, name: &str, dir: &Path) {
    let memory = open(path, &options(Weights::Auto, None));
    assert_eq!((memory.stages(), memory.model.plan().held), (vec![LoadStage::Pack], Held::Resident), "{name}");
    let want = bits(&memory.model);
    let check = |way: &str, opened: &Opened, stages: &[LoadStage], held: Held| {
        assert_eq!(opened.stages(), stages, "{name}, {way}");
        assert_eq!(opened.model.plan().held, held, "{name}, {way}");
        assert!(opened.model.notes().is_empty(), "{name}, {way}: {:?}", opened.model.notes());
        assert_eq!(bits(&opened.model), want, "{name}, {way}");
    };
    check("first load", &open(path, &mapped(dir)), &[LoadStage::Hash, LoadStage::Pack, LoadStage::Weights], Held::Mapped);
    check("mapped", &open(path, &mapped(dir)), &[LoadStage::Weights], Held::Mapped);
    check("resident", &open(path, &options(Weights::Resident, Some(dir))), &[LoadStage::Weights], Held::Resident);
    // The pack is the same for all instruction sets.
    let scalar = BackendOptions { isa: Some("scalar".into()), ..mapped(dir).backend };
    check("scalar", &open(path, &ModelOptions { backend: scalar, ..mapped(dir) }), &[LoadStage::Weights], Held::Mapped);
    let shipped = dir.join(format!("shipped-{name}.gguf"));
    let n_bytes = pack_to(path, &shipped, &options(Weights::Auto, None), &CancelToken::new(), &mut |_, _, _| {}).unwrap();
    assert_eq!(n_bytes, shipped.metadata().unwrap().len());
    for (weights, held) in [(Weights::Mapped, Held::Mapped), (Weights::Resident, Held::Resident)] {
        let options = ModelOptions { validate: true, ..options(weights, None) };
        check("shipped", &open(&shipped, &options), &[LoadStage::Weights], held);
    }
    // With a folder too: a file that ships needs none.
    check("shipped with a folder", &open(&shipped, &mapped(dir)), &[LoadStage::Weights], Held::Mapped);
    std::fs::remove_file(shipped).unwrap();
    no_leftovers(dir);
}

#[test]
fn tiny_models_have_the_same_bits_however_their_weights_are_held() {
    let Some(paths) = tiny_models() else { return };
    let dir = folder("ways");
    for path in &paths {
        check_ways(path, &stem(path), &dir);
    }
    assert_eq!(names(&dir, &[".gguf"]).len(), paths.len(), "each model has its pack");
    assert_eq!(names(&dir, &[".gguf"]).len(), names(&dir, &[".lock"]).len());
}

#[test]
fn split_and_big_endian_models_have_the_same_bits_however_their_weights_are_held() {
    let (Some(split), Some(arch)) = (hostile("s1-00001-of-00002.gguf"), case("arch")) else { return };
    let dir = folder("odd");
    check_ways(&split, "split", &dir);
    for name in ["llama.q8", "qwen2.f32", "phi3.q8", "llama_bf16.bf16", "llama_q4.q4"] {
        let original = arch.join(format!("{name}.gguf"));
        let bytes = std::fs::read(&original).unwrap();
        let mut writer = Writer::from_gguf(&Gguf::parse(&bytes).unwrap());
        writer.endian = Endian::Big;
        let big = dir.join(format!("big-{name}.gguf"));
        std::fs::write(&big, writer.to_bytes().unwrap()).unwrap();
        check_ways(&big, name, &dir);
        let open = |path| open(path, &options(Weights::Auto, None)).model;
        assert_eq!(bits(&open(&big)), bits(&open(&original)), "{name}");
    }
}

#[test]
fn smollm2_has_the_same_bits_however_its_weights_are_held() {
    let Some(path) = real_model(SMOLLM2) else { return };
    check_ways(&path, "smollm2", &folder("smollm2"));
}

// ---------------------------------------------------------------------------------------------------------------------
// Files that ship.

fn tensor_names(path: &Path) -> Vec<String> {
    ModelFile::open_alone(path).unwrap().gguf().unwrap().tensors.iter().map(|t| t.name.to_owned()).collect()
}

fn ship(path: &Path, out: &Path) -> Result<u64, Error> {
    pack_to(path, out, &options(Weights::Auto, None), &CancelToken::new(), &mut |_, _, _| {})
}

#[test]
fn a_tied_matrix_ships_once_and_an_untied_table_as_it_is() {
    let (Some(tied), Some(untied)) = (tiny(), hostile("m03_valid_tiny_untied.gguf")) else { return };
    let dir = folder("tied");
    let out = dir.join("out.gguf");
    ship(&tied, &out).unwrap();
    let names = tensor_names(&out);
    assert!(names.contains(&"token_embd.weight.packed".into()) && !names.contains(&"token_embd.weight".into()), "{names:?}");
    ship(&untied, &out).unwrap();
    let names = tensor_names(&out);
    let table: Vec<_> = names.iter().filter(|n| n.starts_with("token_embd") || n.starts_with("output.")).collect();
    assert_eq!(table, ["output.weight.packed", "token_embd.weight"], "{names:?}");
    // A pack that is kept holds what is packed and nothing besides.
    let kept = open(&untied, &mapped(&dir)).pack();
    assert!(!tensor_names(&kept).contains(&"token_embd.weight".into()));
    let Some(smollm2) = real_model(SMOLLM2) else { return };
    let shipped = ship(&smollm2, &out).unwrap();
    let kept = open(&smollm2, &mapped(&dir)).pack().metadata().unwrap().len();
    // SmolLM2's output matrix alone has 49152 x 576 numbers.
    assert!(shipped >= kept && shipped < kept + (1 << 20), "shipped {shipped}, kept {kept}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_shipped_file_is_refused_where_it_cannot_be_used() {
    let Some(path) = tiny() else { return };
    let dir = folder("refused");
    let out = dir.join("out.gguf");
    ship(&path, &out).unwrap();
    let backend = BackendOptions { backend: Some("reference".into()), ..BackendOptions::default() };
    let error = Model::open(&out, &ModelOptions { backend, ..options(Weights::Auto, None) }).unwrap_err();
    assert!(matches!(&error, Error::Plan(PlanError::Packed { path, .. }) if *path == out), "{error}");
    let said = error.to_string();
    assert!(said.contains("cpu-2") && said.contains("use the model that it was packed from") && !said.contains('\n'), "{said}");
    // It isn't packed a second time, doesn't take the place of its source, nor that of a folder.
    assert!(matches!(ship(&out, &dir.join("again.gguf")), Err(Error::CannotPack("it is packed already"))));
    assert!(matches!(
        selvedge::pack(&out, &mapped(&dir), &CancelToken::new(), &mut |_, _, _| {}),
        Err(Error::CannotPack("it is packed already"))
    ));
    let own = dir.join("own.gguf");
    copy(&path, &own);
    for (to, words) in [(&own, "the model's own file"), (&dir, "is a folder"), (&dir.join("no/such/folder.gguf"), "No such file")] {
        let said = ship(&own, to).unwrap_err().to_string();
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(names(&dir, &[""]), ["out.gguf", "own.gguf"]);
}

#[test]
fn a_damaged_number_in_packed_weights_is_found_by_validation() {
    let Some(path) = tiny() else { return };
    let dir = folder("validate");
    let out = dir.join("out.gguf");
    ship(&path, &out).unwrap();
    let kept = open(&path, &mapped(&dir)).pack();
    for (file, model) in [(&out, &out), (&kept, &path)] {
        let mut bytes = std::fs::read(file).unwrap();
        let gguf = Gguf::parse(&bytes).unwrap();
        let tensor = gguf.tensor("blk.0.ffn_down.weight.packed").unwrap();
        // A step of 32 columns in 16 rows of bytes, then the scales of the rows in f16.
        let at = tensor.offset as usize + 32 * 16 + 1;
        bytes[at] = 0x7c;
        std::fs::write(file, &bytes).unwrap();
        let found = Model::open(model, &ModelOptions { validate: true, ..mapped(&dir) }).unwrap_err().to_string();
        assert!(found.contains("blk.0.ffn_down.weight") && found.contains("damaged"), "{found}");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Hashes.

#[test]
fn a_file_is_hashed_once_until_it_changes_and_copies_share_a_pack() {
    let Some(original) = tiny() else { return };
    let dir = folder("hashed");
    let path = dir.join("model.gguf");
    copy(&original, &path);
    let packs = dir.join("packs");
    let first = open(&path, &mapped(&packs));
    assert_eq!(first.stages(), [LoadStage::Hash, LoadStage::Pack, LoadStage::Weights]);
    let (want, pack) = (bits(&first.model), first.pack());
    assert_eq!(open(&path, &mapped(&packs)).stages(), [LoadStage::Weights]);
    // Touched, and the same as it was.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_modified(SystemTime::now() + Duration::from_secs(5)).unwrap();
    let touched = open(&path, &mapped(&packs));
    assert_eq!((touched.stages(), touched.pack()), (vec![LoadStage::Hash, LoadStage::Weights], pack.clone()));
    assert_eq!(open(&path, &mapped(&packs)).stages(), [LoadStage::Weights]);
    // A copy, and the file under another name.
    let second = dir.join("copy.gguf");
    copy(&original, &second);
    let copied = open(&second, &mapped(&packs));
    assert_eq!((copied.stages(), copied.pack()), (vec![LoadStage::Hash, LoadStage::Weights], pack.clone()));
    assert_eq!(names(&packs, &[".gguf"]).len(), 1);
    // Another model in its place: a pack of its own, other bits.
    copy(&original.with_file_name("m03_valid_tiny_untied.gguf"), &path);
    let other = open(&path, &mapped(&packs));
    assert_eq!(other.stages(), [LoadStage::Hash, LoadStage::Pack, LoadStage::Weights]);
    assert!(other.pack() != pack && bits(&other.model) != want);
    // A memo that is damaged is none.
    for memo in names(&packs, &[".json"]) {
        std::fs::write(packs.join(memo), "{\"size\":").unwrap();
    }
    assert_eq!(open(&second, &mapped(&packs)).stages(), [LoadStage::Hash, LoadStage::Weights]);
    no_leftovers(&packs);
}

// ---------------------------------------------------------------------------------------------------------------------
// Packs that can't be used.

fn set(writer: &mut Writer<'_>, key: &str, value: impl Into<selvedge::gguf::OwnedValue>) {
    writer.set(key, value);
}

/// A pack with something in its head changed.
fn edited(bytes: &[u8], edit: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut writer = Writer::from_gguf(&Gguf::parse(bytes).unwrap());
    edit(&mut writer);
    writer.to_bytes().unwrap()
}

#[test]
fn packs_that_cannot_be_used_are_made_again_and_told() {
    let Some(path) = tiny() else { return };
    let dir = folder("unusable");
    let first = open(&path, &mapped(&dir));
    let (want, pack) = (bits(&first.model), first.pack());
    drop(first);
    let whole = std::fs::read(&pack).unwrap();
    let n = whole.len();
    let mut spoiled: Vec<(String, Vec<u8>, &str)> = Vec::new();
    let head = Gguf::parse(&whole).unwrap().data_start as usize;
    let lengths = (0..40).map(|i| i * n / 40).chain([1, 3, 4, 23, 24, head - 1, head, head + 1, n - 4096, n - 65, n - 64, n - 1]);
    spoiled.extend(lengths.map(|len| (format!("cut to {len} of {n}"), whole[..len].to_vec(), "")));
    spoiled.push(("zeros".into(), vec![0; n], "GGUF"));
    spoiled.push(("garbage".into(), (0..n).map(|i| (i * 97 / 7) as u8).collect(), "GGUF"));
    spoiled.push(("the model itself".into(), std::fs::read(&path).unwrap(), "holds no packed weights"));
    spoiled.push(("other form".into(), edited(&whole, |w| set(w, "selvedge.pack.form", "cpu-0")), "its form is cpu-0"));
    spoiled.push(("other numerics".into(), edited(&whole, |w| set(w, "selvedge.pack.numerics", 7_u32)), "version 7 of the arithmetic"));
    spoiled.push(("other model".into(), edited(&whole, |w| set(w, "selvedge.pack.source", "ab".repeat(32).as_str())), "another model"));
    spoiled.push(("other pieces".into(), edited(&whole, |w| drop(w.tensors_mut().pop())), ""));
    let other_way = edited(&whole, |w| w.endian = Endian::Big);
    spoiled.push(("other byte order".into(), other_way, "little-endian"));
    // The head ends elsewhere, and the pieces lie as they did from there on.
    let key = b"general.alignment";
    let shifted = (1..64).step_by(8).map(|n| edited(&whole, |w| set(w, "general.name", "x".repeat(n).as_str()))).find_map(|mut bytes| {
        let at = bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 4;
        bytes[at..][..4].copy_from_slice(&8_u32.to_le_bytes());
        (Gguf::parse(&bytes).ok()?.data_start % 64 != 0).then_some(bytes)
    });
    spoiled.push(("out of line".into(), shifted.unwrap(), "no multiple of 64"));
    for (i, (what, bytes, words)) in spoiled.iter().enumerate() {
        std::fs::write(&pack, bytes).unwrap();
        // The file's hash may be forgotten as well: then the damage shows only once the file is hashed.
        let forgotten = i % 5 == 4;
        if forgotten {
            names(&dir, &[".json"]).iter().for_each(|memo| std::fs::remove_file(dir.join(memo)).unwrap());
        }
        let again = open(&path, &mapped(&dir));
        told_once(&again.model, &[pack.to_str().unwrap(), "can't be used", "packed again", words]);
        assert_eq!(again.was(LoadStage::Hash), forgotten, "{what}");
        assert!(again.was(LoadStage::Pack) && again.pack() == pack, "{what}");
        assert_eq!(bits(&again.model), want, "{what}");
        drop(again);
        assert!(std::fs::read(&pack).unwrap() == whole, "{what}: the pack is what it was");
    }
    // Something that can't be replaced: the weights are packed in memory.
    std::fs::remove_file(&pack).unwrap();
    std::fs::create_dir_all(pack.join("inside")).unwrap();
    let beside = open(&path, &mapped(&dir));
    assert!(beside.model.notes().len() == 2 && beside.model.packs().next().is_none(), "{:?}", beside.model.notes());
    assert_eq!((bits(&beside.model), beside.model.plan().held), (want.clone(), Held::Resident));
    std::fs::remove_dir_all(&pack).unwrap();
    // What a writer that was killed has left goes when the pack is made.
    let leftover = pack.with_extension("12345-0.tmp");
    std::fs::write(&leftover, &whole[..n / 2]).unwrap();
    let clean = open(&path, &mapped(&dir));
    assert!(clean.model.notes().is_empty() && !leftover.exists());
    assert_eq!(bits(&clean.model), want);
}

#[test]
fn a_folder_that_takes_no_pack_costs_no_hash() {
    let Some(path) = tiny() else { return };
    let want = bits(&open(&path, &options(Weights::Auto, None)).model);
    let check = |what: &str, options: &ModelOptions, words: &[&str]| {
        let opened = open(&path, options);
        told_once(&opened.model, &[words, &["packed in memory"]].concat());
        assert_eq!((opened.stages(), opened.model.plan().held), (vec![LoadStage::Pack], Held::Resident), "{what}");
        assert_eq!(bits(&opened.model), want, "{what}");
    };
    let dir = folder("takes-none");
    let file = dir.join("file");
    std::fs::write(&file, "").unwrap();
    check("a file as folder", &mapped(&file), &[file.to_str().unwrap()]);
    let why = selvedge::plan(&path, &mapped(&file)).unwrap().plan.held_why;
    assert!(why.contains(file.to_str().unwrap()), "{why}");
    if cfg!(target_os = "linux") {
        // A folder in which nobody can make a file, root neither.
        check("a folder of the kernel's", &mapped(Path::new("/proc/self")), &["cannot make a file in /proc/self"]);
    }
    let limited = ModelOptions { packs: PackOptions { dir: Some(dir.clone()), limit: Some(1000) }, ..mapped(&dir) };
    check("a low limit", &limited, &["the limit of 1000"]);
    // No name is no folder.
    assert!(open(&path, &mapped(Path::new(""))).model.notes().is_empty());
    assert!(names(&dir, &["gguf", "tmp"]).is_empty());
}

// ---------------------------------------------------------------------------------------------------------------------
// Any bytes.

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }
}

/// Opens whatever it is and computes with it: a typed error in one sentence, or some numbers.
fn try_out(path: &Path, options: &ModelOptions) -> Result<String, String> {
    let sentence = |e: String| {
        assert!(!e.is_empty() && !e.contains('\n'), "{e}");
        e
    };
    let model = Model::open(path, options).map_err(|e| sentence(e.to_string()))?;
    let mut engine = Engine::new(model.inner().clone()).map_err(|e| sentence(e.to_string()))?;
    let tokens: Vec<TokenId> = [1, 2, 319].iter().map(|&id| TokenId(id % model.n_vocab() as u32)).collect();
    let mut hash = LogitsHash::default();
    engine.step(&rows(0, 0, &tokens, &(0..3)), &CancelToken::new(), &mut |_, l| hash.row(l)).map_err(|e| sentence(e.to_string()))?;
    Ok(hash.hex())
}

/// Changes some bytes in a range.
fn flip(bytes: &mut [u8], range: std::ops::Range<usize>, rng: &mut Rng) {
    for _ in 0..1 + rng.below(3) {
        let at = range.start + rng.below(range.len());
        match rng.below(3) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.below(256) as u8,
            _ => {
                let end = (at + 8).min(range.end);
                bytes[at..end].fill([0, 0xff, 0x7f, 0x80][rng.below(4)]);
            }
        }
    }
}

fn check_flips(name: &str, n: usize, seed: u64) {
    let Some(arch) = case("arch") else { return };
    let path = arch.join(name);
    let dir = folder(&format!("flips-{name}"));
    let mut rng = Rng(seed);
    let first = open(&path, &mapped(&dir));
    let (want, pack) = (bits(&first.model), first.pack());
    drop(first);
    let whole = std::fs::read(&pack).unwrap();
    let data = Gguf::parse(&whole).unwrap().data_start as usize;
    let keys = whole.windows(13).position(|w| w == b"selvedge.pack").unwrap();
    let mut outcomes = [0; 3];
    for i in 0..n {
        // The table of the pack is what is new in the file; then what comes before, and the weights.
        let range = [keys..data, 0..data, data..whole.len()][i % 3].clone();
        println!("pack {i}");
        let mut bytes = whole.clone();
        flip(&mut bytes, range, &mut rng);
        std::fs::write(&pack, &bytes).unwrap();
        let model = Model::open(&path, &mapped(&dir)).unwrap();
        // Damage that shows makes a new pack; in the weights it can't show.
        let replaced = !model.notes().is_empty();
        outcomes[usize::from(replaced)] += 1;
        if replaced {
            assert_eq!(bits(&model), want);
        } else {
            outcomes[2] += usize::from(try_out(&path, &mapped(&dir)).is_err());
        }
    }
    println!("found: {name}: {n} damaged packs: {} used, of which {} gave an error, {} made again", outcomes[0], outcomes[2], outcomes[1]);
    let shipped = dir.join("shipped.gguf");
    ship(&path, &shipped).unwrap();
    let whole = std::fs::read(&shipped).unwrap();
    let data = Gguf::parse(&whole).unwrap().data_start as usize;
    let keys = whole.windows(13).position(|w| w == b"selvedge.pack").unwrap();
    let mut failed = 0;
    for i in 0..n {
        println!("shipped {i}");
        let range = [keys..data, 0..data, data..whole.len()][i % 3].clone();
        let mut bytes = whole.clone();
        flip(&mut bytes, range, &mut rng);
        if i % 20 == 0 {
            bytes.truncate(rng.below(bytes.len()));
        }
        std::fs::write(&shipped, &bytes).unwrap();
        let options = ModelOptions { validate: i % 4 == 0, ..options([Weights::Mapped, Weights::Resident][i % 2], None) };
        failed += usize::from(try_out(&shipped, &options).is_err());
    }
    println!("found: {name}: {n} damaged files that ship: {failed} gave an error");
    assert!(failed > n / 4 && failed < n);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn no_damage_to_a_pack_or_a_shipped_file_ends_in_a_panic() {
    check_flips("llama_q4.q4.gguf", 240, 1);
    check_flips("qwen2.q8.gguf", 120, 2);
    check_flips("phi3.f32.gguf", 90, 3);
}

#[test]
#[ignore = "long: thousands of damaged files"]
fn no_damage_to_packs_ends_in_a_panic_at_length() {
    for (i, name) in ["llama_q4.q4", "gemma3.q8", "phi3.q8", "llama_bf16.bf16", "granite.f32"].iter().enumerate() {
        check_flips(&format!("{name}.gguf"), 2000, 11 + i as u64);
    }
}

/// Tables that contradict the file: sizes that computing with them would overflow, shapes that no block fills.
#[test]
fn tables_that_lie_are_refused() {
    let Some(path) = tiny() else { return };
    let dir = folder("lies");
    let shipped = dir.join("shipped.gguf");
    ship(&path, &shipped).unwrap();
    let whole = std::fs::read(&shipped).unwrap();
    let key = |name: &str| format!("selvedge.pack.{name}");
    let gguf = Gguf::parse(&whole).unwrap();
    let tensors: Vec<String> =
        gguf.metadata.array(&key("tensor")).unwrap().unwrap().strings().unwrap().map(|s| String::from_utf8(s.to_vec()).unwrap()).collect();
    let numbers = |name: &str| gguf.metadata.array(&key(name)).unwrap().unwrap().i64s().unwrap().map(|x| x as u64).collect::<Vec<u64>>();
    let lie = |name: &str, of: &str, value: u64| {
        let mut all = numbers(name);
        tensors.iter().zip(&mut all).filter(|(t, _)| t.contains(of)).for_each(|(_, x)| *x = value);
        all
    };
    type Edit<'a> = Box<dyn Fn(&mut Writer<'_>) + 'a>;
    let tell = |name: &'static str, of: &'static str, value: u64| -> Edit<'_> {
        let all = lie(name, of, value);
        Box::new(move |w: &mut Writer<'_>| set(w, &key(name), all.clone()))
    };
    let huge = 1_u64 << 60;
    let lies: Vec<(&str, Vec<Edit<'_>>)> = vec![
        (
            "a hidden layer of 2^60 rows, in keys and table alike",
            vec![
                tell("n_out", "ffn_gate", huge),
                tell("n_out", "ffn_up", huge),
                tell("rows", "ffn_gate", huge),
                tell("rows", "ffn_up", huge),
                tell("n_in", "ffn_down", huge),
                Box::new(move |w| set(w, "llama.feed_forward_length", huge)),
            ],
        ),
        ("a vocabulary of 2^60", vec![tell("n_out", "token_embd", huge), tell("rows", "token_embd", huge)]),
        ("columns that are no whole blocks", vec![tell("n_in", "ffn_down", 63)]),
        ("rows beyond the tensor", vec![tell("first", "ffn_down", u64::MAX)]),
        ("a type that nobody knows", vec![tell("type", "ffn_down", 4242)]),
        ("one piece too many", vec![Box::new(|w| set(w, &key("rows"), vec![1_u64; 9999]))]),
        ("no types", vec![Box::new(|w| assert!(w.remove(&key("type"))))]),
        ("a number as form", vec![Box::new(|w| set(w, &key("form"), 1_u32))]),
        ("the other byte order", vec![Box::new(|w| w.endian = Endian::Big)]),
        ("more pieces than tensors", vec![Box::new(|w| w.tensors_mut().truncate(2))]),
        ("a piece in a type of its own", vec![Box::new(|w| w.tensors_mut()[0].ty = selvedge::gguf::TensorType::I32)]),
    ];
    for (what, edits) in lies {
        let bytes = edited(&whole, |w| {
            edits.iter().for_each(|edit| edit(w));
            // Types of other sizes need data that fits them.
            for t in w.tensors_mut().iter_mut().filter(|t| t.ty == selvedge::gguf::TensorType::I32) {
                t.dims = vec![t.data.len() as u64 / 4];
            }
        });
        std::fs::write(&shipped, bytes).unwrap();
        let said = try_out(&shipped, &options(Weights::Mapped, None)).expect_err(what);
        println!("{what}: {said}");
        assert!(said.contains("selvedge.pack") || said.contains("packed"), "{what}: {said}");
        // To look into it is another matter.
        ModelFile::open_alone(&shipped).unwrap();
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Many at once.

/// Variables that make `child` do something.
const CHILD: [&str; 3] = ["SELVEDGE_PACKS_CHILD", "SELVEDGE_PACKS_MODEL", "SELVEDGE_PACKS_DIR"];

/// What another process does for the tests of this one.
#[test]
fn child() {
    let [Some(job), Some(path), Some(dir)] = CHILD.map(std::env::var_os) else { return };
    let (path, mut options) = (PathBuf::from(path), mapped(Path::new(&dir)));
    if job == "budget" {
        options.plan.budget = Some(selvedge::plan(&path, &options).unwrap().plan.anonymous.total());
        let error = Model::open(&path, &options).unwrap_err();
        assert!(matches!(error, Error::Plan(PlanError::Memory { .. })), "{error}");
        println!("told: {error}");
        return;
    }
    let model = Model::open(&path, &options).unwrap();
    model.notes().iter().for_each(|note| println!("told: {note}"));
    println!("bits: {}", bits(&model));
}

fn child_command(job: &str, path: &Path, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    command.env(CHILD[0], job).env(CHILD[1], path).env(CHILD[2], dir);
    command
}

/// Lines of a child's output that begin so.
fn lines(output: &std::process::Output, what: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}", output.status);
    text.lines().filter_map(|l| l.find(what).map(|at| l[at + what.len()..].trim().to_owned())).collect()
}

fn check_processes(path: &Path, dir: &Path) {
    let want = bits(&open(path, &options(Weights::Auto, None)).model);
    let children: Vec<_> = (0..4)
        .map(|_| {
            let mut command = child_command("load", path, dir);
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert_eq!(lines(&output, "bits:"), [want.as_str()]);
        assert!(lines(&output, "told:").is_empty(), "{:?}", lines(&output, "told:"));
    }
    assert_eq!(names(dir, &[".gguf"]).len(), 1);
    no_leftovers(dir);
    assert_eq!(open(path, &mapped(dir)).stages(), [LoadStage::Weights]);
}

#[test]
fn first_loads_in_many_processes_make_one_pack() {
    let Some(path) = tiny() else { return };
    for round in 0..3 {
        check_processes(&path, &folder(&format!("processes-{round}")));
    }
    if let Some(path) = real_model(SMOLLM2) {
        check_processes(&path, &folder("processes-real"));
    }
}

#[test]
fn first_loads_on_many_threads_make_one_pack_and_cleaning_meanwhile_harms_none() {
    let Some(path) = tiny() else { return };
    let want = bits(&open(&path, &options(Weights::Auto, None)).model);
    let dir = folder("threads");
    let made = std::sync::atomic::AtomicUsize::new(0);
    let load = || {
        let opened = open(&path, &mapped(&dir));
        made.fetch_add(usize::from(opened.was(LoadStage::Pack)), std::sync::atomic::Ordering::Relaxed);
        assert!(opened.model.notes().is_empty(), "{:?}", opened.model.notes());
        assert_eq!(bits(&opened.model), want);
    };
    std::thread::scope(|scope| (0..6).for_each(|_| drop(scope.spawn(load))));
    assert_eq!(made.into_inner(), 1, "one thread packs, the others wait for it");
    assert_eq!(names(&dir, &[".gguf"]).len(), 1);
    no_leftovers(&dir);
    // Somebody empties the folder again and again: a load may find its pack gone, never a wrong one.
    let store = PackStore::open(&dir, None).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..15 {
                    let model = Model::open(&path, &mapped(&dir)).unwrap();
                    assert_eq!(bits(&model), want);
                }
            });
        }
        for _ in 0..60 {
            store.clean();
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    store.clean();
    assert!(names(&dir, &[""]).is_empty(), "{:?}", names(&dir, &[""]));
}

// ---------------------------------------------------------------------------------------------------------------------
// No room.

/// Runs a child that may write files of so many blocks of 512 bytes.
#[cfg(unix)]
fn limited(job: &str, path: &Path, dir: &Path, blocks: usize) -> std::process::Output {
    let child = child_command(job, path, dir);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -f {blocks} && exec \"$0\" \"$@\"")]).arg(child.get_program()).args(child.get_args());
    command.envs(child.get_envs().filter_map(|(k, v)| Some((k, v?)))).output().unwrap()
}

#[cfg(unix)]
#[test]
fn a_limit_on_the_size_of_files_leads_to_memory_and_is_told() {
    let Some(path) = tiny() else { return };
    let want = bits(&open(&path, &options(Weights::Auto, None)).model);
    for blocks in [0, 1, 8] {
        let dir = folder(&format!("limited-{blocks}"));
        let output = limited("load", &path, &dir, blocks);
        let told = lines(&output, "told:");
        assert!(told.len() == 1 && told[0].contains("packed in memory") && told[0].contains(&(512 * blocks).to_string()), "{told:?}");
        assert_eq!(lines(&output, "bits:"), [want.as_str()], "{blocks} blocks");
        assert!(names(&dir, &[".gguf", ".tmp"]).is_empty(), "{:?}", names(&dir, &[""]));
        let told = lines(&limited("budget", &path, &dir, blocks), "told:");
        assert!(told.len() == 1 && told[0].contains("the budget is") && told[0].contains("can't be kept"), "{told:?}");
    }
}

/// A file system of its own, where one may be mounted.
#[cfg(target_os = "linux")]
struct Mounted(PathBuf);

#[cfg(target_os = "linux")]
impl Mounted {
    fn new(name: &str, options: &str) -> Option<Mounted> {
        let dir = folder(name);
        let output = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&dir).output();
        if output.is_ok_and(|o| o.status.success()) {
            return Some(Mounted(dir));
        }
        println!("skipped: no file system may be mounted here, so that a disk that is full wasn't tried");
        None
    }
}

#[cfg(target_os = "linux")]
impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leads_to_memory_and_is_told() {
    let Some(path) = tiny() else { return };
    let want = bits(&open(&path, &options(Weights::Auto, None)).model);
    // Room for nothing, for the hash alone, for half of a pack.
    for size in ["4k", "16k", "32k"] {
        let Some(disk) = Mounted::new(&format!("full-{size}"), &format!("size={size}")) else { return };
        if size == "4k" {
            std::fs::write(disk.0.join("filler"), vec![1; 4096]).unwrap();
        }
        for weights in [Weights::Mapped, Weights::Auto] {
            let opened = open(&path, &options(weights, Some(&disk.0)));
            told_once(&opened.model, &["packed in memory", "No space left"]);
            assert_eq!((bits(&opened.model), opened.model.plan().held), (want.clone(), Held::Resident), "{size}");
            assert!(names(&disk.0, &[".gguf", ".tmp"]).is_empty(), "{size}: {:?}", names(&disk.0, &[""]));
        }
        let mut tight = mapped(&disk.0);
        tight.plan.budget = Some(selvedge::plan(&path, &tight).unwrap().plan.anonymous.total());
        let error = Model::open(&path, &tight).unwrap_err();
        assert!(matches!(&error, Error::Plan(PlanError::Memory { .. })) && error.to_string().contains("No space left"), "{error}");
        assert!(names(&disk.0, &[".gguf", ".tmp"]).is_empty());
        let error = ship(&path, &disk.0.join("out.gguf")).unwrap_err().to_string();
        assert!(error.contains("No space left") && error.contains("out.gguf"), "{error}");
        assert!(names(&disk.0, &["gguf", "tmp"]).is_empty());
    }
    // A disk that can't be written at all.
    let Some(disk) = Mounted::new("read-only", "size=1m,ro") else { return };
    let opened = open(&path, &mapped(&disk.0));
    told_once(&opened.model, &["packed in memory", "Read-only"]);
    assert_eq!((bits(&opened.model), opened.was(LoadStage::Hash)), (want.clone(), false));
    // Nor one that holds the pack, and has forgotten which file it is of.
    let Some(disk) = Mounted::new("read-only-packed", "size=1m") else { return };
    open(&path, &mapped(&disk.0));
    names(&disk.0, &[".json"]).iter().for_each(|memo| std::fs::remove_file(disk.0.join(memo)).unwrap());
    assert!(Command::new("mount").args(["-o", "remount,ro"]).arg(&disk.0).status().unwrap().success());
    let opened = open(&path, &mapped(&disk.0));
    assert_eq!((opened.stages(), opened.model.notes().len()), (vec![LoadStage::Hash, LoadStage::Weights], 0));
    assert_eq!(bits(&opened.model), want);
    let other = open(&path.with_file_name("m03_valid_tiny_untied.gguf"), &mapped(&disk.0));
    told_once(&other.model, &["packed in memory", "Read-only"]);
}

/// What a context of that error's advice needs fits indeed.
#[cfg(unix)]
#[test]
fn what_the_memory_error_advises_fits_in_memory() {
    let Some(path) = tiny() else { return };
    let file = folder("advice").join("file");
    std::fs::write(&file, "").unwrap();
    let mut tight = options(Weights::Auto, None);
    let plan = |n_ctx, options: &ModelOptions| {
        let options = ModelOptions { plan: PlanOptions { n_ctx: Some(n_ctx), ..options.plan }, ..options.clone() };
        selvedge::plan(&path, &options).unwrap().plan
    };
    tight.plan.budget = Some(plan(70, &tight).anonymous.total());
    tight.plan.n_ctx = Some(128);
    if cfg!(target_os = "linux") {
        tight.packs.dir = Some("/proc/self".into());
        tight.plan.weights = Weights::Mapped;
        // It would fit if the pack could be kept, which shows only when it is made.
        assert!(plan(128, &tight).anonymous.total() <= tight.plan.budget.unwrap());
        let Err(Error::Plan(PlanError::Memory { advice, .. })) = Model::open(&path, &tight) else { panic!("a memory error") };
        let fits: usize = advice.split("a context of ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!((70..128).contains(&fits), "{advice}");
        tight.plan.n_ctx = Some(fits);
        Model::open(&path, &tight).unwrap();
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Cancel.

#[test]
fn a_load_that_is_cancelled_leaves_nothing_and_the_next_one_is_fine() {
    let Some(path) = real_model(SMOLLM2) else { return };
    let dir = folder("cancel");
    let want = bits(&open(&path, &options(Weights::Auto, None)).model);
    // Stage, and the part of it after which the cancel comes; all of it: while the file is brought to the disk.
    for (stage, part) in
        [(LoadStage::Hash, 0.0), (LoadStage::Hash, 0.5), (LoadStage::Pack, 0.0), (LoadStage::Pack, 0.4), (LoadStage::Pack, 1.0)]
    {
        PackStore::open(&dir, None).unwrap().clean();
        let cancel = CancelToken::new();
        let mut at = None;
        let result = Model::open_with(&path, &mapped(&dir), &cancel, &mut |now, done, total| {
            if now == stage && done as f64 >= part * total as f64 && at.is_none() {
                cancel.cancel();
                at = Some(Instant::now());
            }
        });
        let took = at.expect("the stage came").elapsed();
        assert!(result.unwrap_err().is_cancelled(), "{stage:?} at {part}");
        println!("found: cancelled at {part} of {stage:?}, back after {took:?}");
        assert!(took < Duration::from_millis(200), "{stage:?} at {part}: back after {took:?}");
        assert!(names(&dir, &[".gguf", ".tmp"]).is_empty(), "{:?}", names(&dir, &[""]));
    }
    let after = open(&path, &mapped(&dir));
    assert!(after.model.notes().is_empty());
    assert_eq!(bits(&after.model), want);
    // One that waits for another process.
    let lock = std::fs::File::open(dir.join(&names(&dir, &[".lock"])[0])).unwrap();
    lock.lock().unwrap();
    std::fs::remove_file(after.pack()).unwrap();
    let cancel = CancelToken::new();
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            cancel.cancel();
        });
        assert!(Model::open_with(&path, &mapped(&dir), &cancel, &mut |_, _, _| {}).unwrap_err().is_cancelled());
    });
    assert!((300..500).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    // A file that ships.
    let out = dir.join("out.gguf");
    let cancel = CancelToken::new();
    let result = pack_to(&path, &out, &options(Weights::Auto, None), &cancel, &mut |_, done, total| {
        if done * 2 > total {
            cancel.cancel();
        }
    });
    assert!(result.unwrap_err().is_cancelled() && names(&dir, &["out.gguf", ".tmp"]).is_empty());
    std::fs::remove_dir_all(dir).unwrap();
}

// ---------------------------------------------------------------------------------------------------------------------
// Limits.

#[test]
fn a_limit_takes_the_pack_that_was_used_longest_ago_and_clean_takes_all() {
    let Some(a) = tiny() else { return };
    let dir = folder("limit");
    let others = ["m01_valid_tiny_f32.gguf", "m03_valid_tiny_untied.gguf"].map(|name| a.with_file_name(name));
    let pack = |path: &Path, limit: Option<u64>| {
        // Times of use that differ on any file system.
        std::thread::sleep(Duration::from_millis(30));
        open(path, &ModelOptions { packs: PackOptions { dir: Some(dir.clone()), limit }, ..mapped(&dir) }).pack()
    };
    let (first, second) = (pack(&a, None), pack(&others[0], None));
    pack(&a, None);
    let size = |path: &Path| path.metadata().unwrap().len();
    // Room for two of the three: the second was used before the first was used again.
    let third = pack(&others[1], Some(size(&first) + 130_000));
    assert!(first.exists() && !second.exists() && third.exists(), "{:?}", names(&dir, &[""]));
    assert_eq!(names(&dir, &[".lock"]).len(), 2, "{:?}", names(&dir, &[""]));
    // One that is mapped goes on when its name is gone.
    let running = open(&a, &mapped(&dir)).model;
    let want = bits(&running);
    // Models and other files of a person's in the same folder are no packs.
    for name in ["SmolLM2.gguf", "a.lock", "source.json", "x.tmp"] {
        std::fs::write(dir.join(name), "mine").unwrap();
    }
    std::fs::write(first.with_extension("99-1.tmp"), "left by a process that was killed").unwrap();
    let store = PackStore::open(&dir, None).unwrap();
    let total = size(&first) + size(&third);
    assert_eq!(store.prune(total, None).n_files, 0);
    let cleaned = store.clean();
    assert_eq!((cleaned.n_files, cleaned.n_bytes), (2, total));
    assert_eq!(names(&dir, &[""]), ["SmolLM2.gguf", "a.lock", "source.json", "x.tmp"]);
    assert_eq!(store.clean().n_files, 0);
    assert_eq!(bits(&running), want);
}

// ---------------------------------------------------------------------------------------------------------------------
// Packs that change while they are mapped.

#[test]
fn a_pack_that_changes_while_mapped_is_an_error_at_the_next_step() {
    let Some(path) = tiny() else { return };
    type Spoil = fn(&Path);
    let spoils: [(&str, Spoil); 3] = [
        ("cut short", |pack| std::fs::OpenOptions::new().write(true).open(pack).unwrap().set_len(5000).unwrap()),
        ("emptied", |pack| std::fs::OpenOptions::new().write(true).open(pack).unwrap().set_len(0).unwrap()),
        ("rewritten", |pack| {
            std::thread::sleep(Duration::from_millis(30));
            std::fs::write(pack, std::fs::read(pack).unwrap()).unwrap();
        }),
    ];
    for (what, spoil) in spoils {
        let dir = folder(&format!("changes-{}", what.replace(' ', "-")));
        let opened = open(&path, &mapped(&dir));
        let pack = opened.pack();
        let mut engine = Engine::new(opened.model.inner().clone()).unwrap();
        let tokens = tiny_tokens(8, 1);
        feed(&mut engine, &tokens[..4], 4, &(0..0), &mut |_, _| {});
        spoil(&pack);
        let error = engine.step(&rows(0, 4, &tokens[4..], &(0..8)), &CancelToken::new(), &mut |_, _| {}).unwrap_err();
        assert!(matches!(&error, StepError::Model(ModelError::Changed { path, .. }) if *path == pack), "{what}: {error}");
        assert_eq!(engine.len(SeqId(0)), 4, "{what}");
        // The next load helps itself.
        let again = Model::open(&path, &mapped(&dir)).unwrap();
        assert_eq!(bits(&again), bits(&open(&path, &options(Weights::Auto, None)).model), "{what}");
    }
    // Replaced as the store does it, the mapping stays what it was.
    let dir = folder("changes-replaced");
    let opened = open(&path, &mapped(&dir));
    let (want, pack) = (bits(&opened.model), opened.pack());
    let other = dir.join("other");
    std::fs::write(&other, "something else").unwrap();
    std::fs::rename(other, pack).unwrap();
    assert_eq!(bits(&opened.model), want);
    // Held in memory, the file may do what it likes.
    let held = open(&path, &options(Weights::Resident, Some(&dir)));
    let pack = dir.join(&names(&dir, &[".gguf"])[0]);
    std::fs::OpenOptions::new().write(true).open(pack).unwrap().set_len(0).unwrap();
    assert_eq!(bits(&held.model), want);
}

// ---------------------------------------------------------------------------------------------------------------------
// Memory and time.

/// Lines of `/proc/self/smaps` about mappings of a file, bytes by name.
#[cfg(target_os = "linux")]
fn mapping_bytes(path: &Path, field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut inside, mut sum, mut n) = (false, 0, 0);
    for line in text.lines() {
        if line.split(' ').next().is_some_and(|range| range.contains('-')) {
            inside = line.ends_with(path.to_str().unwrap());
            n += usize::from(inside);
        } else if let (true, Some(kib)) = (inside, line.strip_prefix(field).and_then(|l| l.strip_prefix(':'))) {
            sum += kib.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024;
        }
    }
    assert!(n > 0, "{} is mapped", path.display());
    sum
}

#[cfg(target_os = "linux")]
#[test]
fn a_mapped_pack_adds_no_private_pages() {
    let Some(path) = real_model(SMOLLM2) else { return };
    let dir = folder("private");
    for _ in 0..2 {
        let opened = open(&path, &mapped(&dir));
        bits(&opened.model);
        let pack = opened.pack();
        for field in ["Private_Dirty", "Shared_Dirty", "Anonymous", "Swap"] {
            assert_eq!(mapping_bytes(&pack, field), 0, "{field}");
        }
        assert!(mapping_bytes(&pack, "Rss") > 50 << 20);
    }
    let resident = open(&path, &options(Weights::Resident, Some(&dir)));
    assert!(resident.model.packs().next().is_none());
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    assert!(!text.contains(&names(&dir, &[".gguf"])[0]), "a copy leaves nothing mapped");
    std::fs::remove_dir_all(dir).unwrap();
}

/// A warm open of a model: the quickest of a few, as other tests run beside.
fn warm_open(path: &Path, dir: &Path) -> Duration {
    open(path, &mapped(dir));
    let time = |_| {
        let start = Instant::now();
        let opened = open(path, &mapped(dir));
        let took = start.elapsed();
        assert_eq!(opened.stages(), [LoadStage::Weights]);
        took
    };
    (0..9).map(time).min().unwrap()
}

#[test]
fn a_warm_open_is_quick() {
    let dir = folder("warm");
    for name in [SMOLLM2, GEMMA] {
        let Some(path) = real_model(name) else { continue };
        let took = warm_open(&path, &dir);
        println!("found: {name} opens in {took:?}");
        // 50 ms on an idle machine and in a release build.
        assert!(took < Duration::from_millis(250), "{name} opens in {took:?}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// Takes a file out of the system's cache.
#[cfg(target_os = "linux")]
fn drop_cache(path: &Path) -> bool {
    let dd = Command::new("dd").arg(format!("if={}", path.display())).args(["iflag=nocache", "count=0", "status=none"]).status();
    dd.is_ok_and(|status| status.success())
}

/// Case 35 of CASES.md, on a file: the first token of a model whose weights are on the disk and nowhere else.
#[cfg(target_os = "linux")]
fn check_cold(path: &Path, dir: &Path) {
    use std::io::Read as _;
    let before = status_bytes("RssAnon").unwrap();
    let pack = open(path, &mapped(dir)).pack();
    let first_token = |options: &ModelOptions| {
        let start = Instant::now();
        let opened = open(path, options);
        let mut engine = Engine::new(opened.model.inner().clone()).unwrap();
        feed(&mut engine, &synthetic(1, None), 1, &(0..1), &mut |_, _| {});
        start.elapsed()
    };
    first_token(&mapped(dir));
    let warm = first_token(&mapped(dir));
    assert!(drop_cache(&pack), "dd drops the cache");
    let start = Instant::now();
    let (mut file, mut buffer) = (std::fs::File::open(&pack).unwrap(), vec![0; 1 << 20]);
    while file.read(&mut buffer).unwrap() > 0 {}
    drop((file, buffer));
    let read = start.elapsed();
    drop_cache(&pack);
    let cold = first_token(&mapped(dir));
    println!("found: {}: read once {read:?}, first token warm {warm:?}, cold {cold:?}", stem(path));
    // Half a second more for a machine that does other things.
    assert!(cold < (read + warm).mul_f64(1.3) + Duration::from_millis(500), "cold {cold:?}, read {read:?}, warm {warm:?}");
    // Cancelled in the middle.
    drop_cache(&pack);
    let cancel = CancelToken::new();
    let mut at = None;
    let result = Model::open_with(path, &mapped(dir), &cancel, &mut |stage, done, total| {
        if stage == LoadStage::Weights && done > total / 3 && at.is_none() {
            cancel.cancel();
            at = Some(Instant::now());
        }
    });
    assert!(result.unwrap_err().is_cancelled());
    let took = at.unwrap().elapsed();
    assert!(took < Duration::from_millis(200), "back after {took:?}");
    // Anonymous memory with the model mapped and a token computed.
    let opened = open(path, &mapped(dir));
    let mut engine = Engine::new(opened.model.inner().clone()).unwrap();
    feed(&mut engine, &synthetic(1, None), 1, &(0..1), &mut |_, _| {});
    let (anonymous, size) = (status_bytes("RssAnon").unwrap().saturating_sub(before), pack.metadata().unwrap().len());
    println!("found: {}: cancelled after {took:?}, {anonymous} bytes anonymous, the file has {size}", stem(path));
    assert!(anonymous < size / 4, "{anonymous} bytes anonymous, the file has {size}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_cold_start_reads_once_and_can_be_cancelled() {
    let Some(path) = real_model(SMOLLM2) else { return };
    if in_own_process("a_cold_start_reads_once_and_can_be_cancelled") {
        check_cold(&path, &folder("cold"));
    }
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "long: a gigabyte that is packed and read cold"]
fn a_cold_start_of_a_gigabyte_reads_once_and_can_be_cancelled() {
    let Some(path) = real_model("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf") else { return };
    if in_own_process("a_cold_start_of_a_gigabyte_reads_once_and_can_be_cancelled") {
        let dir = folder("cold-gigabyte");
        let start = Instant::now();
        drop(open(&path, &mapped(&dir)));
        println!("found: the first load takes {:?}", start.elapsed());
        check_cold(&path, &dir);
        let took = warm_open(&path, &dir);
        println!("found: it opens in {took:?}");
        assert!(took < Duration::from_millis(250), "it opens in {took:?}");
        std::fs::remove_dir_all(dir).unwrap();
    }
}

/// An error of a load says which one it is.
#[test]
fn errors_of_packing_are_typed() {
    let Some(path) = hostile("n01_q8_scale_nan.gguf") else { return };
    let dir = folder("typed");
    let error = Model::open(&path, &mapped(&dir)).unwrap_err();
    assert!(matches!(error, Error::Load(LoadError::Backend(selvedge::BackendError::DamagedTensor { .. }))), "{error}");
    assert!(names(&dir, &[".gguf", ".tmp"]).is_empty(), "{:?}", names(&dir, &[""]));
}
