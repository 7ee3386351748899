//! Models split over several files: `NAME-00001-of-00003.gguf` and so on, tied together by the `split.*` keys.
//!
//! The first file holds the metadata; each holds a part of the tensors. This module knows names and checks; which files
//! there are is the caller's to find: [`siblings`] tells what to open, [`check_set`] whether what was opened fits.

use crate::error::Error;
use crate::reader::Gguf;
use std::collections::HashMap;

/// Key of the file's place in the set, from 0.
pub const SPLIT_NO: &str = "split.no";
/// Key of the number of files.
pub const SPLIT_COUNT: &str = "split.count";
/// Key of the number of tensors in all files together.
pub const SPLIT_TENSORS: &str = "split.tensors.count";

/// Most files in a set: the names have five digits, and the count is stored in 16 bits.
pub const MAX_SPLITS: u32 = u16::MAX as u32;

/// What a file says about its place in a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitInfo {
    /// Place in the set, from 0.
    pub no: u32,
    /// Number of files, at least 2.
    pub count: u32,
    /// Tensors in all files together, where stated.
    pub n_tensors: Option<u64>,
}

impl SplitInfo {
    /// Reads the `split.*` keys; `None` for a file that stands alone.
    ///
    /// # Errors
    /// [`Error::KeyType`] for keys of a wrong type, [`Error::SplitNumber`] for a place outside the set.
    pub fn of(gguf: &Gguf<'_>) -> Result<Option<Self>, Error> {
        let count = gguf.metadata.u32(SPLIT_COUNT)?.unwrap_or(1);
        if count <= 1 {
            return Ok(None);
        }
        let no = gguf.metadata.require_u32(SPLIT_NO)?;
        if no >= count || count > MAX_SPLITS {
            return Err(Error::SplitNumber {
                no,
                count,
                max: MAX_SPLITS,
            });
        }
        Ok(Some(Self {
            no,
            count,
            n_tensors: gguf.metadata.u64(SPLIT_TENSORS)?,
        }))
    }
}

/// A file name of the form `NAME-00002-of-00003.gguf`, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitName<'a> {
    /// What stands before the numbers, the last hyphen left out.
    pub stem: &'a str,
    /// Place in the set, from 0; the name counts from 1.
    pub no: u32,
    /// Number of files.
    pub count: u32,
}

impl<'a> SplitName<'a> {
    /// Takes a file name (or path) apart; `None` where it has another form.
    pub fn parse(file_name: &'a str) -> Option<Self> {
        let (rest, count) = file_name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (stem, no) = rest.rsplit_once('-')?;
        let number = |digits: &str| {
            let well_formed = digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit());
            well_formed.then(|| digits.parse::<u32>().ok())?
        };
        let (no, count) = (number(no)?.checked_sub(1)?, number(count)?);
        (no < count).then_some(Self { stem, no, count })
    }

    /// The name of the file at place `no`, from 0, in the same folder.
    pub fn sibling(&self, no: u32) -> String {
        format!(
            "{}-{:05}-of-{:05}.gguf",
            self.stem,
            no.saturating_add(1),
            self.count
        )
    }
}

/// The names of the other files of the set that `gguf`, opened as `file_name`, begins; empty where it stands alone.
/// Names (or paths) have the form of `file_name`, in ascending order, so the set is the file itself and then these.
///
/// # Errors
/// [`Error::SplitNotFirst`], which names the first file, where this is a later one; [`Error::SplitName`] where the name
/// doesn't tell those of the others; and those of [`SplitInfo::of`].
pub fn siblings(gguf: &Gguf<'_>, file_name: &str) -> Result<Vec<String>, Error> {
    let Some(info) = SplitInfo::of(gguf)? else {
        return Ok(Vec::new());
    };
    let name = SplitName::parse(file_name);
    if info.no != 0 {
        let first = name.map_or_else(
            || "the one whose `split.no` is 0".to_owned(),
            |name| name.sibling(0),
        );
        return Err(Error::SplitNotFirst {
            no: info.no,
            count: info.count,
            first,
        });
    }
    match name {
        Some(name) if name.no == 0 && name.count == info.count => {
            Ok((1..info.count).map(|no| name.sibling(no)).collect())
        }
        _ => Err(Error::SplitName {
            found: file_name.to_owned(),
            count: info.count,
        }),
    }
}

/// Checks the files of a set, given in order: place and count in each, no tensor twice, the total that the first states.
///
/// # Errors
/// [`Error::SplitMember`], [`Error::SplitDuplicate`], [`Error::SplitTotal`]; and those of [`SplitInfo::of`].
pub fn check_set(parts: &[Gguf<'_>]) -> Result<(), Error> {
    let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    let mut n_tensors = None;
    let mut seen: HashMap<&str, u32> = HashMap::new();
    for (index, part) in (0u32..).zip(parts) {
        let found = SplitInfo::of(part)?;
        let fits = match found {
            Some(info) => info.no == index && info.count == count,
            None => count == 1,
        };
        if !fits {
            let (no, of) = found.map_or((0, 1), |info| (info.no, info.count));
            return Err(Error::SplitMember {
                index,
                count,
                found_no: no,
                found_count: of,
            });
        }
        if index == 0 {
            n_tensors = found.and_then(|info| info.n_tensors);
        }
        for tensor in &part.tensors {
            if let Some(first) = seen.insert(tensor.name, index) {
                let name = crate::error::shown(tensor.name);
                return Err(Error::SplitDuplicate {
                    name,
                    first,
                    second: index,
                });
            }
        }
    }
    let found = seen.len() as u64;
    match n_tensors {
        Some(expected) if expected != found => Err(Error::SplitTotal { expected, found }),
        _ => Ok(()),
    }
}
