//! Sets of files: names, places, and what doesn't fit together.

mod common;

use selvedge_gguf::split::{SPLIT_COUNT, SPLIT_NO, SPLIT_TENSORS, check_set, siblings};
use selvedge_gguf::{Error, Gguf, SplitInfo, SplitName, TensorType, Writer};

#[test]
fn names_are_taken_apart_and_put_together() {
    let name = SplitName::parse("/models/big-q4-00002-of-00003.gguf").unwrap();
    assert_eq!(
        name,
        SplitName {
            stem: "/models/big-q4",
            no: 1,
            count: 3
        }
    );
    assert_eq!(name.sibling(0), "/models/big-q4-00001-of-00003.gguf");
    assert_eq!(name.sibling(1), "/models/big-q4-00002-of-00003.gguf");
    for other in [
        "a.gguf",
        "a-00001-of-00002",
        "a-1-of-2.gguf",
        "a-00000-of-00002.gguf",
        "a-00003-of-00002.gguf",
        "a-000001-of-00002.gguf",
        "a-0000x-of-00002.gguf",
        "a-+0001-of-00002.gguf",
        "00001-of-00002.gguf",
        "",
    ] {
        assert_eq!(SplitName::parse(other), None, "{other}");
    }
}

/// A file of a set with the given tensors.
fn part(no: u16, count: u16, total: i32, tensors: &[&str]) -> Vec<u8> {
    let mut w = Writer::new();
    w.set(SPLIT_NO, no)
        .set(SPLIT_COUNT, count)
        .set(SPLIT_TENSORS, total);
    for name in tensors {
        w.add_tensor(name, TensorType::F32, &[1], vec![0; 4]);
    }
    w.to_bytes().unwrap()
}

#[test]
fn a_set_is_checked_as_a_whole() {
    let files = [
        part(0, 2, 3, &["a", "b"]),
        part(1, 2, 3, &["c"]),
        part(1, 2, 3, &["a"]),
        part(0, 2, 4, &["a", "b"]),
    ];
    let [first, second, double, miscounted] = files.each_ref().map(|f| Gguf::parse(f).unwrap());
    assert_eq!(
        SplitInfo::of(&second),
        Ok(Some(SplitInfo {
            no: 1,
            count: 2,
            n_tensors: Some(3)
        }))
    );
    assert_eq!(check_set(&[first.clone(), second.clone()]), Ok(()));
    let twice = Error::SplitDuplicate {
        name: "a".to_owned(),
        first: 0,
        second: 1,
    };
    assert_eq!(check_set(&[first.clone(), double]), Err(twice));
    assert_eq!(
        check_set(&[miscounted, second.clone()]),
        Err(Error::SplitTotal {
            expected: 4,
            found: 3
        })
    );
    let alone = Error::SplitMember {
        index: 0,
        count: 1,
        found_no: 0,
        found_count: 2,
    };
    assert_eq!(check_set(std::slice::from_ref(&first)), Err(alone));
    let swapped = Error::SplitMember {
        index: 0,
        count: 2,
        found_no: 1,
        found_count: 2,
    };
    assert_eq!(check_set(&[second.clone(), first.clone()]), Err(swapped));

    assert_eq!(
        siblings(&first, "m-00001-of-00002.gguf"),
        Ok(vec!["m-00002-of-00002.gguf".to_owned()])
    );
    let later = siblings(&second, "m-00002-of-00002.gguf").unwrap_err();
    assert!(
        later
            .to_string()
            .ends_with("open the first one, m-00001-of-00002.gguf"),
        "{later}"
    );
    assert!(matches!(
        siblings(&first, "renamed.gguf"),
        Err(Error::SplitName { .. })
    ));
    assert!(matches!(
        siblings(&first, "m-00001-of-00003.gguf"),
        Err(Error::SplitName { .. })
    ));

    let bad = part(2, 2, 3, &[]);
    let found = SplitInfo::of(&Gguf::parse(&bad).unwrap());
    assert!(matches!(
        found,
        Err(Error::SplitNumber {
            no: 2,
            count: 2,
            ..
        })
    ));
    let alone = Writer::new().to_bytes().unwrap();
    let alone = Gguf::parse(&alone).unwrap();
    assert_eq!(siblings(&alone, "m.gguf"), Ok(vec![]));
    assert_eq!(check_set(&[alone]), Ok(()));
}

#[test]
fn the_sets_of_the_cases() {
    let Some(dir) = common::cases() else { return };
    let read = |name: &str| std::fs::read(dir.join("hostile").join(name)).unwrap();
    let check = |set: &str| {
        let name = format!("{set}-00001-of-00002.gguf");
        let first = read(&name);
        let others = siblings(&Gguf::parse(&first).unwrap(), &name).unwrap();
        assert_eq!(others, [format!("{set}-00002-of-00002.gguf")]);
        let files: Vec<Vec<u8>> = std::iter::once(first)
            .chain(others.iter().map(|name| read(name)))
            .collect();
        check_set(
            &files
                .iter()
                .map(|f| Gguf::parse(f).unwrap())
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(check("s1"), Ok(()));
    let twice = check("s5").unwrap_err();
    assert_eq!(
        twice,
        Error::SplitDuplicate {
            name: "token_embd.weight".to_owned(),
            first: 0,
            second: 1
        }
    );
}
