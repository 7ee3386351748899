//! Packed weights where the plan wants them: mapped from a pack, copied from one, or packed in memory.

use super::load::{LoadError, LoadStage};
use crate::backend::{Backend, BackendError, HoldBytes, LoadControl, PackBytes, PackLayout, PackSink, no_pack};
use crate::cancel::CancelToken;
use crate::model::{Access, Found, KeepError, Making, PackFile, PackStore};
use crate::os::{self, Region};
use crate::plan::{Held, Planned, Segment};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// What was brought.
#[derive(Default)]
pub(super) struct Brought {
    /// Packed weights of each segment.
    pub packs: Vec<PackBytes>,
    /// Those that are mapped.
    pub mapped: Vec<Arc<PackFile>>,
    /// What went otherwise than expected.
    pub notes: Vec<String>,
}

/// How far a load is: stage, bytes done, bytes in all.
type Progress<'a> = &'a mut dyn FnMut(LoadStage, u64, u64);

/// A segment with what its backend needs.
struct Part<'a> {
    planned: &'a Planned,
    segment: &'a Segment,
    /// As [`LoadControl::memory`].
    memory: u64,
    backend: Arc<dyn Backend>,
    layout: PackLayout,
}

impl<'a> Part<'a> {
    fn of(planned: &'a Planned, segment: &'a Segment, memory: u64) -> Part<'a> {
        let backend = planned.backends[segment.backend_idx].clone();
        let layout = backend.pack_layout(&planned.graph, segment.nodes.clone());
        Part { planned, segment, memory, backend, layout }
    }

    fn pack(&self, sink: &dyn PackSink, control: &mut LoadControl<'_>) -> Result<(), BackendError> {
        self.planned.file.advise(Access::Sequential);
        self.backend.pack(&self.planned.graph, self.segment.nodes.clone(), &*self.planned.file, sink, control)
    }

    /// The pack in a store, made where it isn't there.
    fn keep(
        &self,
        store: &PackStore,
        notes: &mut Vec<String>,
        cancel: &CancelToken,
        progress: Progress<'_>,
    ) -> Result<PackFile, KeepError> {
        let mut unusable = match store.find(&self.planned.file, &self.layout) {
            Found::Pack(pack) => return Ok(pack),
            Found::Unusable(reason) => Some(reason),
            Found::Nothing => None,
        };
        let mut tell = |making, done, total| {
            let stage = match making {
                Making::Hash => LoadStage::Hash,
                Making::Pack => LoadStage::Pack,
            };
            progress(stage, done, total);
        };
        let made =
            store.make(&self.planned.file, &self.layout, cancel, self.memory, &mut tell, &mut |sink, control| self.pack(sink, control));
        if let Ok(made) = &made {
            unusable = unusable.or(made.replaced.clone());
        }
        notes.extend(unusable.map(|reason| format!("{reason}; the weights are packed again")));
        made.map(|made| made.pack)
    }

    /// Packs in memory.
    fn in_memory(&self, cancel: &CancelToken, progress: Progress<'_>) -> Result<PackBytes, BackendError> {
        let region = Mutex::new(Region::new(self.layout.n_bytes, true)?);
        let mut tell = |done, total| progress(LoadStage::Pack, done, total);
        self.pack(&region, &mut LoadControl { progress: &mut tell, cancel, memory: self.memory })?;
        Ok(Arc::new(region.into_inner().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Looks at every number of a pack that wasn't made just now.
    fn check(&self, pack: &dyn HoldBytes, cancel: &CancelToken) -> Result<(), BackendError> {
        self.backend.check_pack(&self.planned.graph, self.segment.nodes.clone(), pack.bytes(), cancel)
    }
}

/// Brings the packed weights of all segments. Where a pack can't be kept, weights that were to be mapped are packed in
/// memory, if the plan's limit allows it. `validate`: every number of packs that are there is looked at.
pub(super) fn bring(planned: &mut Planned, validate: bool, cancel: &CancelToken, progress: Progress<'_>) -> Result<Brought, LoadError> {
    let mut brought = Brought::default();
    for segment in planned.plan.segments.clone() {
        // Keys, values and scratch are planned and not there yet.
        let memory = planned.plan.anonymous.kv + planned.plan.anonymous.arena;
        let part = Part::of(planned, &segment, memory);
        // Packing may begin again in memory when a disk turns out to be full: what was told stays told.
        let mut last = (LoadStage::Tokenizer, 0);
        let progress: Progress<'_> = &mut |stage, done, total| {
            last = (stage, if last.0 == stage { done.max(last.1) } else { done });
            progress(stage, last.1, total);
        };
        let (held, file, n_threads) = (planned.plan.held, planned.file.clone(), part.backend.info().n_threads);
        let pack = if part.layout.n_bytes == 0 {
            no_pack()
        } else if file.packed().is_some() {
            if validate {
                part.check(&*file, cancel)?;
            }
            settle(held, &*file, &mut |keep_on| file.read_in(keep_on), n_threads, cancel, progress)?.unwrap_or(file)
        } else {
            let kept = planned.store.as_ref().map(|store| part.keep(store, &mut brought.notes, cancel, progress)).transpose();
            match kept {
                Ok(Some(pack)) => {
                    if validate {
                        part.check(&pack, cancel)?;
                    }
                    let pack = Arc::new(pack);
                    match settle(held, &*pack, &mut |keep_on| pack.read_in(keep_on), n_threads, cancel, progress)? {
                        Some(copy) => copy,
                        None => {
                            brought.mapped.push(pack.clone());
                            pack
                        }
                    }
                }
                Ok(None) => part.in_memory(cancel, progress)?,
                Err(KeepError::Backend(e)) => return Err(e.into()),
                Err(KeepError::Place(reason)) => {
                    planned.pack_in_memory(&reason)?;
                    brought.notes.push(format!("packed weights can't be kept, they are packed in memory at every load: {reason}"));
                    Part::of(planned, &segment, memory).in_memory(cancel, progress)?
                }
            }
        };
        brought.packs.push(pack);
    }
    planned.file.advise(Access::Normal);
    Ok(brought)
}

/// Packs that a store was made to hold.
#[derive(Debug, Default)]
pub struct Kept {
    /// Their files.
    pub files: Vec<PathBuf>,
    /// What was otherwise than one might expect, a sentence each.
    pub notes: Vec<String>,
}

/// Makes the plan's store hold the packed weights, and loads nothing. `progress`: stage, bytes done, bytes in all.
///
/// # Errors
/// [`BackendError::PackWrite`] where they can't be kept, or where there is no store; what packing refuses.
pub fn keep_packed(planned: &Planned, cancel: &CancelToken, progress: &mut dyn FnMut(LoadStage, u64, u64)) -> Result<Kept, BackendError> {
    let unable = |reason: String| BackendError::PackWrite { reason };
    let Some(store) = &planned.store else { return Err(unable("there is no folder for them".into())) };
    let mut kept = Kept::default();
    for segment in &planned.plan.segments {
        let part = Part::of(planned, segment, u64::MAX);
        if part.layout.n_bytes > 0 {
            let pack = part.keep(store, &mut kept.notes, cancel, progress).map_err(|error| match error {
                KeepError::Backend(e) => e,
                KeepError::Place(reason) => unable(reason),
            })?;
            kept.files.push(pack.path().to_owned());
        }
    }
    Ok(kept)
}

/// What reads a file in, as long as it is told to go on.
type ReadIn<'a> = &'a mut dyn FnMut(&mut dyn FnMut(usize) -> bool);

/// Leaves bytes mapped and reads them in, or copies them to memory: the copy.
fn settle(
    held: Held,
    mapped: &dyn HoldBytes,
    read_in: ReadIn<'_>,
    n_threads: usize,
    cancel: &CancelToken,
    progress: Progress<'_>,
) -> Result<Option<PackBytes>, LoadError> {
    let bytes = mapped.bytes();
    let total = bytes.len() as u64;
    if held == Held::Resident {
        let copy = copy(bytes, n_threads, cancel, &mut |done| progress(LoadStage::Weights, done, total))?;
        progress(LoadStage::Weights, total, total);
        return Ok(Some(Arc::new(copy)));
    }
    // Where memory is short the system would drop the first pages for the last: they come when they are needed.
    if os::available_memory().is_none_or(|free| free / 2 > total) {
        read_in(&mut |done| {
            progress(LoadStage::Weights, (done as u64).min(total), total);
            !cancel.is_cancelled()
        });
    }
    if cancel.is_cancelled() {
        return Err(BackendError::Cancelled.into());
    }
    progress(LoadStage::Weights, total, total);
    Ok(None)
}

/// Bytes that a thread copies before it looks at the cancel token: one huge page.
const COPIED_AT_ONCE: usize = 2 << 20;

/// A copy in huge pages, made by several threads.
fn copy(from: &[u8], n_threads: usize, cancel: &CancelToken, progress: &mut dyn FnMut(u64)) -> Result<Region, BackendError> {
    let mut region = Region::new(from.len(), true)?;
    let parts = Mutex::new(region.bytes_mut().chunks_mut(COPIED_AT_ONCE).zip(from.chunks(COPIED_AT_ONCE)).enumerate());
    let work = |progress: &mut dyn FnMut(u64)| {
        loop {
            let part = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((i, (to, from))) = part.filter(|_| !cancel.is_cancelled()) else { return };
            progress((i * COPIED_AT_ONCE) as u64);
            to[..from.len()].copy_from_slice(from);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..n_threads.min(from.len() / COPIED_AT_ONCE) {
            // With fewer threads the copy is slower and nothing else.
            let _ = std::thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, || work(&mut |_| {}));
        }
        work(progress);
    });
    if cancel.is_cancelled() { Err(BackendError::Cancelled) } else { Ok(region) }
}
