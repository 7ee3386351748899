//! Which model a file is: its SHA-256, computed once and remembered until the file changes.

use crate::cancel::CancelToken;
use crate::model::mapped::{MappedFile, Stamp};
use crate::model::{Access, ModelFile};
use crate::os;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// How the names of memos begin.
pub(super) const MEMO: &str = "source-";

/// What is remembered of a file. A change of any of these is a reason to hash it again.
#[derive(Debug, Serialize, Deserialize)]
struct Memo {
    size: u64,
    device: u64,
    inode: u64,
    mtime: u64,
    ctime: u64,
    sha256: String,
}

/// Bytes hashed between two looks at the cancel token.
const AT_ONCE: usize = 4 << 20;

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Where the memo of a file lies: named by what the system calls the file, or by its path where it has no number. `None`
/// where it has neither.
fn memo_path(dir: &Path, file: &MappedFile) -> Option<PathBuf> {
    let stamp = file.stamp()?;
    let mut key = match (stamp.inode, file.is_named()) {
        (0, false) => return None,
        (0, true) => hex(&Sha256::digest(file.path().as_os_str().as_encoded_bytes())[..8]),
        (inode, _) => format!("{:x}-{inode:x}", stamp.device),
    };
    if let Some((start, n_bytes)) = file.part() {
        key.push_str(&format!("-{start:x}-{n_bytes:x}"));
    }
    Some(dir.join(format!("{MEMO}{key}.json")))
}

fn remembered(dir: &Path, file: &MappedFile) -> Option<String> {
    let memo: Memo = serde_json::from_slice(&std::fs::read(memo_path(dir, file)?).ok()?).ok()?;
    let found = Stamp { len: memo.size, device: memo.device, inode: memo.inode, mtime: memo.mtime, ctime: memo.ctime };
    (Some(found) == file.stamp() && memo.sha256.len() == 64).then_some(memo.sha256)
}

/// Remembers a hash. One that can't be kept costs another the next time.
fn remember(dir: &Path, file: &MappedFile, sha256: &str) {
    let Some(Stamp { len, device, inode, mtime, ctime }) = file.stamp() else { return };
    let Some(at) = memo_path(dir, file) else { return };
    let Ok(bytes) = serde_json::to_vec(&Memo { size: len, device, inode, mtime, ctime, sha256: sha256.to_owned() }) else { return };
    let temporary = at.with_extension(super::store::temporary_extension());
    if os::check_file_size(bytes.len() as u64).and_then(|()| std::fs::write(&temporary, bytes)).is_err()
        || std::fs::rename(&temporary, &at).is_err()
    {
        // It may not even be there.
        let _ = std::fs::remove_file(&temporary);
    }
}

/// The hash of a file; `None` after a cancel. `progress`: bytes done.
fn hash(file: &MappedFile, cancel: &CancelToken, progress: &mut dyn FnMut(u64)) -> Option<String> {
    file.advise(Access::Sequential);
    let mut hash = Sha256::new();
    for (i, part) in file.bytes().chunks(AT_ONCE).enumerate() {
        if cancel.is_cancelled() {
            return None;
        }
        progress((i * AT_ONCE) as u64);
        hash.update(part);
    }
    Some(hex(&hash.finalize()))
}

/// One hash for the parts of a set: that of the only part, or of all parts' hashes in their order.
fn of_parts(parts: &[String]) -> String {
    match parts {
        [one] => one.clone(),
        many => hex(&Sha256::digest(many.concat().as_bytes())),
    }
}

/// The hash of a model as it is remembered in `dir`.
pub(super) fn known(dir: &Path, model: &ModelFile) -> Option<String> {
    let parts: Option<Vec<String>> = model.mapped().map(|file| remembered(dir, file)).collect();
    Some(of_parts(&parts?))
}

/// The hash of a model, remembered in `dir` or computed; `None` after a cancel. `progress`: bytes done and in all.
pub(super) fn find(dir: Option<&Path>, model: &ModelFile, cancel: &CancelToken, progress: &mut dyn FnMut(u64, u64)) -> Option<String> {
    let (total, mut before) = (model.mapped().map(|file| file.bytes().len() as u64).sum(), 0);
    let mut parts = Vec::new();
    for file in model.mapped() {
        let known = dir.and_then(|dir| remembered(dir, file));
        let sha256 = match known {
            Some(known) => known,
            None => {
                let sha256 = hash(file, cancel, &mut |done| progress(before + done, total))?;
                // A change while it was hashed shows in what the system says of it: then nothing is remembered.
                if let (Some(dir), Ok(())) = (dir, file.check_unchanged()) {
                    remember(dir, file, &sha256);
                }
                before += file.bytes().len() as u64;
                progress(before, total);
                sha256
            }
        };
        parts.push(sha256);
    }
    Some(of_parts(&parts))
}
