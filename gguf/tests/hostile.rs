//! Malformed files: each of the cases behaves as its manifest says, and no cut of a real file is taken for a whole one.

mod common;

use selvedge_gguf::{Error, Gguf};

#[test]
fn every_parse_case_behaves_as_the_manifest_says() {
    let Some(dir) = common::cases() else { return };
    let text = std::fs::read_to_string(dir.join("hostile/manifest.json")).unwrap();
    let manifest: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let mut n_parse = 0;
    for case in &manifest {
        let file = case["file"].as_str().unwrap();
        let bytes = std::fs::read(dir.join("hostile").join(file)).unwrap();
        let parsed = Gguf::parse(&bytes);
        if let Err(error) = &parsed {
            let text = error.to_string();
            println!("{file}: {text}");
            assert!(
                !text.contains('\n') && text.len() < 400,
                "{file}: not one short sentence: {text}"
            );
        }
        // Cases of later stages are well-formed containers.
        let is_parse = case["stage"] == "parse";
        let expect_ok = !is_parse || case["expect"] == "loads";
        if !is_parse || case["firm"] == true {
            assert_eq!(parsed.is_ok(), expect_ok, "{file}: {:?}", parsed.err());
        }
        n_parse += usize::from(is_parse);
    }
    assert!(
        n_parse >= 40,
        "the manifest has {n_parse} parse cases, expected at least 40"
    );
}

#[test]
fn a_cut_file_names_what_is_missing() {
    for path in common::models() {
        let whole = std::fs::read(&path).unwrap();
        let gguf = Gguf::parse(&whole).unwrap();
        let data_start = gguf.data_start as usize;
        let last = gguf
            .tensors
            .iter()
            .max_by_key(|t| t.offset + t.n_bytes)
            .unwrap();
        let end = (last.offset + last.n_bytes) as usize;
        let cuts = [
            end - 1,
            end - 4096,
            data_start + 1,
            data_start,
            data_start - 1,
            4096,
            24,
            23,
            8,
            4,
            3,
            1,
        ];
        for cut in cuts {
            match Gguf::parse(&whole[..cut]) {
                Err(Error::Truncated {
                    what,
                    needed,
                    file_len,
                }) => {
                    assert_eq!(file_len, cut as u64);
                    assert!(needed > file_len, "cut {cut}: {what} needs {needed}");
                    assert!(
                        cut < data_start || what.contains("tensor `"),
                        "cut {cut}: {what}"
                    );
                }
                Err(Error::Count { found, max, .. }) if cut < data_start => {
                    assert!(found > max, "cut {cut}")
                }
                Err(Error::NotGguf { .. }) if cut < 4 => {}
                other => panic!("{} cut at {cut}: {other:?}", path.display()),
            }
        }
        assert!(Gguf::parse(&[]).is_err_and(|e| e == Error::Empty));
    }
}
