//! Any bytes as a file with packed weights: the table is refused in one sentence, or is bounded by the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use selvedge_core::backend::PackLayout;
use selvedge_core::model::PackTable;
use selvedge_gguf::{Gguf, TensorType};

fuzz_target!(|bytes: &[u8]| {
    let Ok(gguf) = Gguf::parse(bytes) else { return };
    let table = match PackTable::read(&gguf) {
        Ok(Some(table)) => table,
        Ok(None) => return,
        Err(error) => {
            assert!(!error.to_string().contains('\n'));
            return;
        }
    };
    assert!(table.pieces.len() <= gguf.tensors.len());
    for (piece, tensor) in table.pieces.iter().zip(&gguf.tensors) {
        assert_eq!(gguf.data_start + piece.offset as u64, tensor.offset);
        assert!(piece.offset + piece.n_bytes <= bytes.len() && piece.n_bytes as u64 == tensor.n_bytes);
        assert!(piece.rows.start <= piece.rows.end && piece.rows.end <= piece.n_out);
        assert!(piece.n_in.checked_mul(piece.n_out).is_some_and(|n| n <= 8 * bytes.len()));
        assert_eq!(piece.plain, tensor.ty == TensorType::F32);
    }
    let n_bytes = table.pieces.iter().map(|p| p.offset + p.n_bytes).max().unwrap_or(0);
    let own = PackLayout { form: table.form.clone(), pieces: table.pieces.clone(), unpacked: Vec::new(), n_bytes };
    // It is what it says it is, for this version of the arithmetic, and nothing else.
    assert_eq!(table.mismatch(&own).is_none(), table.numerics == selvedge_core::math::NUMERICS);
    let other = PackLayout { form: format!("{}x", table.form), ..own };
    assert!(table.mismatch(&other).is_some());
});
