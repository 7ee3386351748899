//! Packed weights where the plan wants them: mapped from a pack, copied from one, or packed in memory.

use super::load::{LoadError, LoadStage};
use crate::backend::{Backend, BackendError, HoldBytes, LoadControl, PackBytes, PackLayout, PackSink, no_pack};
use crate::cancel::CancelToken;
use crate::model::{Access, Found, Made, PackFile};
use crate::os::{self, Region};
use crate::plan::{Held, Planned, Segment};
use std::sync::{Arc, Mutex, PoisonError};

/// What was brought.
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

/// Brings the packed weights of all segments. Where a pack can't be kept, weights that were to be mapped are packed in
/// memory, if the plan's limit allows it.
pub(super) fn bring(planned: &mut Planned, cancel: &CancelToken, progress: Progress<'_>) -> Result<Brought, LoadError> {
    let mut brought = Brought { packs: Vec::new(), mapped: Vec::new(), notes: Vec::new() };
    for segment in planned.plan.segments.clone() {
        let backend = planned.backends[segment.backend_idx].clone();
        let layout = backend.pack_layout(&planned.graph, segment.nodes.clone());
        let pack = if layout.n_bytes == 0 {
            no_pack()
        } else if planned.file.packed().is_some() {
            let file = planned.file.clone();
            settle(planned.plan.held, &*file, &mut |keep_on| file.read_in(keep_on), &*backend, cancel, progress)?.unwrap_or(file)
        } else {
            from_store(planned, &*backend, &segment, &layout, &mut brought, cancel, progress)?
        };
        brought.packs.push(pack);
    }
    planned.file.advise(Access::Normal);
    Ok(brought)
}

fn from_store(
    planned: &mut Planned,
    backend: &dyn Backend,
    segment: &Segment,
    layout: &PackLayout,
    brought: &mut Brought,
    cancel: &CancelToken,
    progress: Progress<'_>,
) -> Result<PackBytes, LoadError> {
    let (file, graph) = (planned.file.clone(), planned.graph.clone());
    let mut pack = |sink: &dyn PackSink, control: &mut LoadControl<'_>| {
        file.advise(Access::Sequential);
        backend.pack(&graph, segment.nodes.clone(), &*file, sink, control)
    };
    if let Some(store) = planned.store.clone() {
        let found = match store.find(&file, layout) {
            Found::Pack(pack) => Made::Pack(pack),
            not_there => {
                if let Found::Unusable(reason) = not_there {
                    brought.notes.push(format!("{reason}; the weights are packed again"));
                }
                // The same callback tells of both stages: hashing counts the file's bytes, packing the pack's.
                let mut tell = |done, total| {
                    let stage = if total == layout.n_bytes as u64 { LoadStage::Weights } else { LoadStage::Hash };
                    progress(stage, done, total);
                };
                store.make(&file, layout, &mut LoadControl { progress: &mut tell, cancel }, &mut pack)?
            }
        };
        match found {
            Made::Pack(pack) => {
                let pack = Arc::new(pack);
                let copy = settle(planned.plan.held, &*pack, &mut |keep_on| pack.read_in(keep_on), backend, cancel, progress)?;
                if copy.is_none() {
                    brought.mapped.push(pack.clone());
                }
                return Ok(copy.unwrap_or(pack));
            }
            Made::NotKept(reason) => {
                brought.notes.push(format!("packed weights can't be kept, they are packed in memory at every load: {reason}"));
                planned.pack_in_memory(layout.n_bytes as u64)?;
            }
        }
    }
    let region = Mutex::new(Region::new(layout.n_bytes, true).map_err(BackendError::from)?);
    let mut tell = |done, total| progress(LoadStage::Weights, done, total);
    pack(&region, &mut LoadControl { progress: &mut tell, cancel })?;
    Ok(Arc::new(region.into_inner().unwrap_or_else(PoisonError::into_inner)))
}

/// What reads a file in, as long as it is told to go on.
type ReadIn<'a> = &'a mut dyn FnMut(&mut dyn FnMut(usize) -> bool);

/// Leaves bytes mapped and reads them in, or copies them to memory: the copy.
fn settle(
    held: Held,
    mapped: &dyn HoldBytes,
    read_in: ReadIn<'_>,
    backend: &dyn Backend,
    cancel: &CancelToken,
    progress: Progress<'_>,
) -> Result<Option<PackBytes>, LoadError> {
    let bytes = mapped.bytes();
    let total = bytes.len() as u64;
    if held == Held::Resident {
        let mut tell = |done| progress(LoadStage::Weights, done, total);
        return Ok(Some(Arc::new(copy(bytes, backend.info().n_threads, cancel, &mut tell)?)));
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
