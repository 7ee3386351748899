//! Which model a file is: its SHA-256, computed once and remembered until the file changes.

use crate::cancel::CancelToken;
use crate::model::mapped::{MappedFile, Stamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Where the memo of a file lies: named by what the system calls the file, or by its path where it has no number.
fn memo_path(dir: &Path, path: &Path, stamp: Stamp) -> PathBuf {
    let key = if stamp.inode == 0 {
        hex(&Sha256::digest(path.as_os_str().as_encoded_bytes())[..8])
    } else {
        format!("{:x}-{:x}", stamp.device, stamp.inode)
    };
    dir.join(format!("source-{key}.json"))
}

fn remembered(at: &Path, stamp: Stamp) -> Option<String> {
    let memo: Memo = serde_json::from_slice(&std::fs::read(at).ok()?).ok()?;
    let same =
        (memo.size, memo.device, memo.inode, memo.mtime, memo.ctime) == (stamp.len, stamp.device, stamp.inode, stamp.mtime, stamp.ctime);
    (same && memo.sha256.len() == 64).then_some(memo.sha256)
}

/// The hash of a file as it is remembered in `dir`.
pub(super) fn known(dir: &Path, file: &MappedFile) -> Option<String> {
    remembered(&memo_path(dir, file.path(), file.stamp()), file.stamp())
}

/// The hash of a file, remembered or computed; `None` after a cancel. `progress`: bytes done.
pub(super) fn hash(dir: Option<&Path>, file: &MappedFile, cancel: &CancelToken, progress: &mut dyn FnMut(u64)) -> Option<String> {
    if let Some(known) = dir.and_then(|dir| known(dir, file)) {
        return Some(known);
    }
    let mut hash = Sha256::new();
    for (i, part) in file.bytes().chunks(AT_ONCE).enumerate() {
        if cancel.is_cancelled() {
            return None;
        }
        progress((i * AT_ONCE) as u64);
        hash.update(part);
    }
    let sha256 = hex(&hash.finalize());
    // A change while it was hashed shows in the stamp, then nothing is remembered.
    if let (Some(dir), Ok(())) = (dir, file.check_unchanged()) {
        let Stamp { len, device, inode, mtime, ctime } = file.stamp();
        let memo = Memo { size: len, device, inode, mtime, ctime, sha256: sha256.clone() };
        let at = memo_path(dir, file.path(), file.stamp());
        let temporary = at.with_extension(format!("{}.tmp", std::process::id()));
        let written =
            serde_json::to_vec(&memo).map(|bytes| std::fs::write(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, &at)));
        if !matches!(written, Ok(Ok(()))) {
            // A memo that can't be kept costs a hash the next time.
            let _ = std::fs::remove_file(&temporary);
        }
    }
    Some(sha256)
}

/// One hash for the parts of a set: that of the only part, or of all parts' hashes in their order.
pub(super) fn of_parts(parts: &[String]) -> String {
    match parts {
        [one] => one.clone(),
        many => hex(&Sha256::digest(many.concat().as_bytes())),
    }
}
