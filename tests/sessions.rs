//! Sessions: what a caller sees of a reply. Cases 10, 14 to 18, 20 and 24 of CASES.md, prefix reuse, events, errors.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use selvedge::gguf::{Gguf, TensorType, Writer};
use selvedge::{
    BackendError, CancelToken, Completion, EncodeOptions, Error, Event, Finish, GenerateOptions, KvElem, LoadError, Mirostat, Model,
    ModelOptions, Overflow, SamplingParams, Session, SessionError, StepError, TokenId,
};
use selvedge_tests::{GEMMA, SMOLLM2, Setup, argmax, case, feed, ids, logsumexp, real_model, synthetic, tiny_tokens};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn greedy(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(max_tokens),
        sampling: SamplingParams::greedy(),
        ignore_stop_ids: true,
        ..GenerateOptions::default()
    }
}

fn complete(session: &mut Session, prompt: &[TokenId], options: &GenerateOptions) -> Completion {
    session.complete(prompt, options, &CancelToken::new()).unwrap()
}

fn text_ids(model: &Model, text: &str) -> Vec<TokenId> {
    model.tokenizer().encode(text, EncodeOptions { add_special: true, ..EncodeOptions::default() }).unwrap()
}

/// A small model for what doesn't depend on size: one layer, 320 tokens.
fn m01() -> Option<PathBuf> {
    Some(case("hostile")?.join("m01_valid_tiny_f32.gguf"))
}

/// Seven layers, five of them with a window of 8.
fn windowed() -> Option<PathBuf> {
    Some(case("arch")?.join("gemma3.q8.gguf"))
}

fn small(n_ctx: usize) -> Setup {
    Setup { n_ctx, chunk: 64, max_wanted: 1, ..Setup::default() }
}

/// An event as a value.
#[derive(Debug, Clone, PartialEq)]
enum Seen {
    Prefill(usize, usize),
    Token(TokenId, f32, Vec<(TokenId, f32)>, String),
    Text(String),
}

fn seen(event: Event<'_>) -> Seen {
    match event {
        Event::Prefill { done, total } => Seen::Prefill(done, total),
        Event::Token { id, logprob, top, text } => Seen::Token(id, logprob.unwrap(), top.to_vec(), text.to_owned()),
        Event::Text(text) => Seen::Text(text.to_owned()),
        other => panic!("an event that the suite doesn't know: {other:?}"),
    }
}

fn events(session: &mut Session, prompt: &[TokenId], options: &GenerateOptions) -> (selvedge::Stats, Vec<Seen>) {
    let mut all = Vec::new();
    let stats = session
        .generate(prompt, options, &CancelToken::new(), &mut |e| {
            all.push(seen(e));
            ControlFlow::Continue(())
        })
        .unwrap();
    (stats, all)
}

fn streamed(events: &[Seen]) -> String {
    let text = |e: &Seen| match e {
        Seen::Token(_, _, _, text) | Seen::Text(text) => text.clone(),
        Seen::Prefill(..) => String::new(),
    };
    events.iter().map(text).collect()
}

// ---------------------------------------------------------------------------------------------------------------------
// Ends of a reply.

/// Case 10.
#[test]
fn ids_that_end_a_turn_end_the_reply() {
    for (name, stops, expected) in [(GEMMA, &["<eos>", "<end_of_turn>"][..], [1, 106]), (SMOLLM2, &["<|im_end|>", "<|endoftext|>"], [2, 0])]
    {
        let Some(path) = real_model(name) else { return };
        let model = small(64).open(&path);
        for (spelling, id) in stops.iter().zip(expected) {
            assert_eq!(model.tokenizer().special_id(spelling), Some(TokenId(id)), "{name}: {spelling}");
            assert!(model.tokenizer().is_stop(TokenId(id)), "{name}: {spelling} ends a turn");
        }
        let prompt = text_ids(&model, "Once upon a time");
        let mut session = model.session().unwrap();
        let free = complete(&mut session, &prompt, &greedy(2));
        // The id is forced where the reply has two tokens.
        let prompt = [&prompt[..], &free.ids].concat();
        let stop = TokenId(expected[1]);
        let forced = SamplingParams { logit_bias: vec![(stop, 100.0)], ..SamplingParams::greedy() };
        let options = GenerateOptions { sampling: forced, ..GenerateOptions::default() };
        let reply = complete(&mut session, &prompt, &options);
        assert_eq!((reply.stats.finish, reply.stats.n_tokens, reply.text.as_str()), (Finish::Stop(stop), 0, ""), "{name}");
        // Asked for, it is a token like any other, and the limit ends the reply.
        let reply = complete(&mut session, &prompt, &GenerateOptions { max_tokens: Some(3), ignore_stop_ids: true, ..options.clone() });
        assert_eq!((reply.stats.finish, reply.ids), (Finish::Length, vec![stop; 3]), "{name}");
        // Without a limit the context ends it: 64 positions, and one token more that nothing follows.
        let reply = complete(&mut session, &prompt, &GenerateOptions { ignore_stop_ids: true, ..options });
        assert_eq!((reply.stats.finish, reply.stats.n_tokens), (Finish::Context, 64 - prompt.len() + 1), "{name}");
    }
}

/// Case 18.
#[test]
fn a_prompt_longer_than_the_context_is_refused_with_both_numbers() {
    let Some(path) = real_model(SMOLLM2) else { return };
    let model = small(256).open(&path);
    let mut session = model.session().unwrap();
    let prompt = text_ids(&model, &"a b ".repeat(600));
    assert_eq!(prompt.len(), 1201);
    let error = session.complete(&prompt, &greedy(1), &CancelToken::new()).unwrap_err();
    assert!(matches!(error, SessionError::PromptTooLong { tokens: 1201, n_ctx: 256 }), "{error}");
    assert!(error.to_string().contains("1201") && error.to_string().contains("256"), "{error}");
    assert!(matches!(session.complete(&[], &greedy(1), &CancelToken::new()), Err(SessionError::EmptyPrompt)));
    for n in [256, 255, 254] {
        for (max_tokens, n_tokens, finish) in [
            (Some(0), 0, Finish::Length),
            (Some(1), 1, Finish::Length),
            (Some(2), 2.min(257 - n), if n == 256 { Finish::Context } else { Finish::Length }),
            (None, 257 - n, Finish::Context),
        ] {
            let reply = complete(&mut session, &prompt[..n], &GenerateOptions { max_tokens, ..greedy(0) });
            assert_eq!((reply.stats.finish, reply.stats.n_tokens), (finish, n_tokens), "prompt of {n}, at most {max_tokens:?}");
            assert_eq!((reply.ids.len(), reply.stats.prompt_tokens), (n_tokens, n));
            assert!(session.tokens().len() <= 256);
        }
    }
}

/// Case 17: whatever the numbers, a reply ends, or is refused before it began.
#[test]
fn a_context_shift_frees_room_or_is_refused() {
    let Some(path) = m01() else { return };
    let model = small(64).open(&path);
    let prompt = tiny_tokens(60, 1);
    for n_keep in [0, 1, 31, 32, 60, 62, 63, 64, 1000, usize::MAX] {
        for n_discard in [None, Some(0), Some(1), Some(2), Some(31), Some(63), Some(64), Some(1000), Some(usize::MAX)] {
            let case = format!("n_keep {n_keep}, n_discard {n_discard:?}");
            let mut session = model.session().unwrap();
            let options = GenerateOptions { overflow: Overflow::Shift { n_keep, n_discard }, ..greedy(200) };
            let valid = n_keep < 64 && n_discard.is_none_or(|n| n > 0 && n <= 64 - n_keep);
            match session.complete(&prompt, &options, &CancelToken::new()) {
                Ok(reply) => {
                    assert!(valid, "{case} was taken");
                    assert_eq!((reply.stats.finish, reply.stats.n_tokens), (Finish::Length, 200), "{case}");
                    assert!(session.tokens().len() <= 64, "{case}");
                    let n_same = n_keep.min(60);
                    assert_eq!(session.tokens()[..n_same], prompt[..n_same], "{case}: what was to be kept is there");
                }
                Err(SessionError::Overflow { .. }) => {
                    assert!(!valid, "{case} was refused");
                    assert!(session.tokens().is_empty());
                    assert_eq!(complete(&mut session, &prompt, &greedy(1)).stats.n_tokens, 1, "{case}: the session lives");
                }
                Err(e) => panic!("{case}: {e}"),
            }
        }
    }
}

/// Case 17: after a shift the session is what a fresh one would be on the tokens that remain.
#[test]
fn after_a_shift_everything_is_as_fresh() {
    let (Some(m01), Some(windowed)) = (m01(), windowed()) else { return };
    for path in [m01, windowed] {
        let model = small(64).open(&path);
        for (n_keep, n_discard) in [(0, None), (8, Some(5)), (33, Some(31))] {
            let mut session = model.session().unwrap();
            let options = GenerateOptions { overflow: Overflow::Shift { n_keep, n_discard }, ..greedy(90) };
            let reply = complete(&mut session, &tiny_tokens(50, 2), &options);
            // The last token of a reply is not fed; the next is what it leads to.
            let prompt = [session.tokens(), &reply.ids[89..]].concat();
            if prompt.len() > 62 {
                continue;
            }
            let after = events(&mut session, &prompt, &GenerateOptions { top_logprobs: 20, ..greedy(2) });
            assert!(after.0.reused_tokens == prompt.len() - 1, "{}", path.display());
            let fresh = events(&mut model.session().unwrap(), &prompt, &GenerateOptions { top_logprobs: 20, ..greedy(2) });
            let tokens = |e: &[Seen]| e.iter().filter(|e| matches!(e, Seen::Token(..))).cloned().collect::<Vec<_>>();
            assert_eq!(tokens(&after.1), tokens(&fresh.1), "{}, n_keep {n_keep}", path.display());
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Stop texts.

/// Case 20: every window of the free text as a stop text ends the text where it first occurs, streamed or not.
fn check_stop_windows(model: &Model, prompt: &[TokenId], n: usize, every: usize) {
    let mut session = model.session().unwrap();
    let free = complete(&mut session, prompt, &greedy(n));
    let starts: Vec<usize> = free.text.char_indices().map(|(i, _)| i).chain([free.text.len()]).collect();
    let mut n_checked = 0;
    for len in 1..=6 {
        for first in (0..(starts.len() - 1).saturating_sub(len)).skip(len % every).step_by(every) {
            let stop = &free.text[starts[first]..starts[first + len]];
            let expected = &free.text[..free.text.find(stop).unwrap()];
            let options = GenerateOptions { stops: vec!["never to be seen".into(), stop.into()], ..greedy(n) };
            let (stats, all) = events(&mut session, prompt, &options);
            assert_eq!(streamed(&all), expected, "stop {stop:?}, streamed");
            assert_eq!(stats.finish, Finish::StopText(1), "stop {stop:?}");
            if n_checked % 5 == 0 {
                assert_eq!(complete(&mut session, prompt, &options).text, expected, "stop {stop:?}, as a whole");
            }
            n_checked += 1;
        }
    }
    assert!(n_checked > 20, "{n_checked} stop texts");
}

#[test]
fn stop_texts_cut_smollm2_where_they_first_occur() {
    let Some(path) = real_model(SMOLLM2) else { return };
    let model = small(256).open(&path);
    check_stop_windows(&model, &text_ids(&model, "A B C D E F G H I J K"), 24, 6);
}

#[test]
fn stop_texts_cut_a_tiny_model_where_they_first_occur() {
    let Some(path) = m01() else { return };
    let model = small(256).open(&path);
    check_stop_windows(&model, &tiny_tokens(5, 3), 40, 1);
}

#[test]
fn odd_stop_texts_do_no_harm() {
    let Some(path) = m01() else { return };
    let model = small(256).open(&path);
    let mut session = model.session().unwrap();
    let prompt = tiny_tokens(5, 3);
    let free = complete(&mut session, &prompt, &greedy(30));
    assert!(free.text.chars().count() > 5);
    let tail: String = free.text.chars().rev().take(3).collect::<Vec<_>>().into_iter().rev().collect();
    let never = [vec![], vec![String::new()], vec![String::new(), "\u{1F600}".repeat(300)], vec![format!("{tail}, and more")]];
    for stops in never {
        let reply = complete(&mut session, &prompt, &GenerateOptions { stops: stops.clone(), ..greedy(30) });
        assert_eq!((&reply.text, reply.stats.finish), (&free.text, Finish::Length), "{stops:?}");
    }
    let many: Vec<String> = (0..400).map(|i| format!("nothing {i}")).chain([tail.clone()]).collect();
    let reply = complete(&mut session, &prompt, &GenerateOptions { stops: many, ..greedy(30) });
    assert_eq!(reply.text, free.text[..free.text.find(&tail).unwrap()]);
    let too_long = GenerateOptions { stops: vec!["x".repeat(1 << 20)], ..greedy(30) };
    assert!(matches!(session.complete(&prompt, &too_long, &CancelToken::new()), Err(SessionError::Stop(_))));
    assert_eq!(complete(&mut session, &prompt, &greedy(30)).text, free.text);
}

/// A stop text of four bytes, which come in several tokens.
#[test]
fn a_character_of_several_tokens_is_a_stop_text() {
    let Some(path) = real_model(SMOLLM2) else { return };
    let model = small(256).open(&path);
    let mut session = model.session().unwrap();
    let face = "\u{1F600}";
    let face_ids = model.tokenizer().encode(face, EncodeOptions::default()).unwrap();
    assert!(face_ids.len() > 1, "{face_ids:?}");
    let prompt = text_ids(&model, &format!("{face} 1 {face} 2 {face} 3 {face} 4 {face} 5 {face} 6 "));
    let free = complete(&mut session, &prompt, &greedy(24));
    let at = free.text.find(face).unwrap_or_else(|| panic!("the model goes on with faces: {:?}", free.text));
    let (stats, all) = events(&mut session, &prompt, &GenerateOptions { stops: vec![face.into()], ..greedy(24) });
    assert_eq!((streamed(&all).as_str(), stats.finish), (&free.text[..at], Finish::StopText(0)));
    assert!(!free.text.contains('\u{FFFD}'));
}

// ---------------------------------------------------------------------------------------------------------------------
// Sampling.

/// Case 14.
#[test]
fn temperatures_next_to_nothing_are_greedy_and_nonsense_is_refused() {
    let Some(path) = real_model(SMOLLM2) else { return };
    let model = small(128).open(&path);
    let mut session = model.session().unwrap();
    let prompt = text_ids(&model, "A B C D");
    let at = |temperature: f32, seed: u64| GenerateOptions {
        sampling: SamplingParams { temperature, seed: Some(seed), ..SamplingParams::default() },
        ..greedy(12)
    };
    let zero = complete(&mut session, &prompt, &at(0.0, 1));
    for temperature in [1e-45, 1e-30, 1e-6] {
        for seed in [1, 2] {
            assert_eq!(complete(&mut session, &prompt, &at(temperature, seed)).ids, zero.ids, "temperature {temperature}");
        }
    }
    for temperature in [-1.0, f32::NAN, f32::INFINITY] {
        let error = session.complete(&prompt, &at(temperature, 1), &CancelToken::new()).unwrap_err();
        assert!(matches!(error, SessionError::Sampler(_)) && error.to_string().contains("temperature"), "{error}");
    }
    assert_eq!(complete(&mut session, &prompt, &at(0.0, 1)).ids, zero.ids, "the next request works");
}

/// Case 15.
#[test]
fn logit_bias_bans_and_forces() {
    let Some(path) = real_model(SMOLLM2) else { return };
    let model = small(128).open(&path);
    let mut session = model.session().unwrap();
    let prompt = text_ids(&model, "A B C D");
    let id = |text: &str| {
        let ids = model.tokenizer().encode(text, EncodeOptions::default()).unwrap();
        assert_eq!(ids.len(), 1, "{text:?} is one token");
        ids[0]
    };
    let biased = |bias: &[(TokenId, f32)]| GenerateOptions {
        sampling: SamplingParams { logit_bias: bias.to_vec(), ..SamplingParams::greedy() },
        top_logprobs: 1,
        ..greedy(5)
    };
    let free = complete(&mut session, &prompt, &biased(&[]));
    assert_eq!(free.ids[0], id(" E"));
    let banned = complete(&mut session, &prompt, &biased(&[(id(" E"), -100.0)]));
    assert!(!banned.ids.contains(&id(" E")), "{}", banned.text);
    let (_, forced) = events(&mut session, &prompt, &biased(&[(id(" Z"), 100.0)]));
    let tokens: Vec<&Seen> = forced.iter().filter(|e| matches!(e, Seen::Token(..))).collect();
    assert_eq!(tokens.len(), 5);
    for (i, token) in tokens.iter().enumerate() {
        let Seen::Token(token, logprob, top, _) = token else { continue };
        assert_eq!(*token, id(" Z"));
        // Log-probabilities are the model's own, not the sampler's.
        assert!(i > 0 || (top[0].0 == id(" E") && top[0].1 == free.logprobs[0] && *logprob < top[0].1), "{token:?} {logprob} {top:?}");
    }
    let n_vocab = model.n_vocab() as u32;
    for bias in [(TokenId(99_999_999), 1.0), (TokenId(n_vocab), 1.0), (TokenId(5), f32::NAN), (TokenId(5), 1e30), (TokenId(5), -100.5)] {
        let error = session.complete(&prompt, &biased(&[bias]), &CancelToken::new()).unwrap_err();
        assert!(matches!(error, SessionError::Sampler(_)), "{bias:?}: {error}");
    }
    assert_eq!(complete(&mut session, &prompt, &biased(&[(TokenId(n_vocab - 1), 0.5)])).ids, free.ids);
}

/// Case 16: a seed gives the same ids however the prompt came into the cache.
#[test]
fn a_seed_gives_the_same_reply() {
    let Some(path) = real_model(SMOLLM2) else { return };
    let prompt = synthetic(200, None);
    let seeded = |seed: Option<u64>| GenerateOptions { sampling: SamplingParams { seed, ..SamplingParams::default() }, ..greedy(24) };
    let model = Setup { n_ctx: 320, max_wanted: 1, ..Setup::default() }.open(&path);
    let mut session = model.session().unwrap();
    let first = complete(&mut session, &prompt, &seeded(Some(7)));
    assert_eq!(first.stats.seed, 7);
    let again = complete(&mut session, &prompt, &seeded(Some(7)));
    assert_eq!((again.stats.reused_tokens, &again.ids, &again.logprobs), (199, &first.ids, &first.logprobs), "cached prefix");
    assert_eq!(session.keep(77), 77);
    let kept = complete(&mut session, &prompt, &seeded(Some(7)));
    assert_eq!((kept.stats.reused_tokens, &kept.ids), (77, &first.ids), "after a rewind");
    assert_ne!(complete(&mut session, &prompt, &seeded(Some(8))).ids, first.ids, "another seed");
    let random = complete(&mut session, &prompt, &seeded(None));
    let replay = complete(&mut session, &prompt, &seeded(Some(random.stats.seed)));
    assert_eq!(replay.ids, random.ids, "the seed that is reported is the one that was used");
    let other = complete(&mut session, &prompt, &seeded(None));
    assert_ne!((other.stats.seed, other.ids), (random.stats.seed, random.ids), "no seed: another each time");
    for chunk in [1, 16] {
        let model = Setup { n_ctx: 320, chunk, max_wanted: 1, ..Setup::default() }.open(&path);
        assert_eq!(complete(&mut model.session().unwrap(), &prompt, &seeded(Some(7))).ids, first.ids, "chunks of {chunk}");
    }
    let stop = AtomicBool::new(false);
    let mut busy = model.session().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                complete(&mut busy, &prompt[50..], &seeded(None));
            }
        });
        let beside = complete(&mut model.session().unwrap(), &prompt, &seeded(Some(7)));
        stop.store(true, Ordering::Relaxed);
        assert_eq!(beside.ids, first.ids, "beside a busy session");
    });
}

/// All stages at once, seeded, over prefix reuse: on a model so small that many rounds fit.
#[test]
fn every_sampler_is_reproducible() {
    let Some(path) = m01() else { return };
    let model = small(256).open(&path);
    let all = SamplingParams {
        repeat_penalty: 1.2,
        dry_multiplier: 0.8,
        xtc_probability: 0.5,
        xtc_threshold: 0.001,
        typical_p: 0.9,
        logit_bias: vec![(TokenId(9), 2.0)],
        ..SamplingParams::default()
    };
    let mirostat = SamplingParams { mirostat: Some(Mirostat::default()), ..SamplingParams::default() };
    for (name, params) in [("default", SamplingParams::default()), ("all", all), ("mirostat", mirostat)] {
        for seed in 0..8 {
            let options = GenerateOptions { sampling: SamplingParams { seed: Some(seed), ..params.clone() }, ..greedy(60) };
            let prompt = tiny_tokens(40, seed as u32);
            let mut session = model.session().unwrap();
            let first = complete(&mut session, &prompt, &options);
            complete(&mut session, &tiny_tokens(30, 99), &options);
            assert_eq!(complete(&mut session, &prompt, &options).ids, first.ids, "{name}, seed {seed}");
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Prefixes.

#[test]
fn the_longest_common_prefix_is_kept_and_told() {
    let Some(path) = real_model(SMOLLM2) else { return };
    let model = small(256).open(&path);
    let mut session = model.session().unwrap();
    let prompt = synthetic(70, None);
    let first = complete(&mut session, &prompt, &greedy(10));
    assert_eq!(first.stats.reused_tokens, 0);
    // All but the reply's last token was fed.
    assert_eq!(session.tokens(), [&prompt[..], &first.ids[..9]].concat());
    let longer = [&prompt[..], &first.ids, &synthetic(20, None)].concat();
    let edited = [&prompt[..41], &synthetic(30, None)[1..]].concat();
    let shorter = prompt[..50].to_vec();
    for (what, tokens, reused) in [
        ("longer", &longer, 79),
        ("the same again", &longer, longer.len() - 1),
        ("edited", &edited, 41),
        ("shorter", &shorter, 41),
        ("another", &synthetic(30, Some(7)), 0),
    ] {
        let reply = complete(&mut session, tokens, &greedy(6));
        assert_eq!(reply.stats.reused_tokens, reused, "{what}");
        let fresh = complete(&mut model.session().unwrap(), tokens, &greedy(6));
        assert_eq!((reply.ids, reply.logprobs), (fresh.ids, fresh.logprobs), "{what}");
        session.keep(tokens.len());
    }
}

/// A rewind to where the window is gone computes everything again, and gives what a fresh session gives.
fn check_window(path: &Path, setup: Setup, tokens: &[TokenId], edits: &[(usize, bool)]) {
    let model = setup.open(path);
    let mut session = model.session().unwrap();
    for &(edit, kept) in edits {
        complete(&mut session, tokens, &greedy(1));
        let mut edited = tokens[..edit + 20].to_vec();
        edited[edit] = TokenId(edited[edit].0 + 1);
        let reply = complete(&mut session, &edited, &greedy(3));
        assert_eq!(reply.stats.reused_tokens, if kept { edit } else { 0 }, "edited at {edit} of {}", tokens.len());
        let fresh = complete(&mut model.session().unwrap(), &edited, &greedy(3));
        assert_eq!((reply.ids, reply.logprobs), (fresh.ids, fresh.logprobs), "edited at {edit}");
    }
}

#[test]
fn a_rewind_past_the_window_is_computed_again() {
    let Some(path) = windowed() else { return };
    check_window(&path, small(600), &tiny_tokens(560, 1), &[(10, false), (100, false), (300, true), (530, true)]);
}

#[test]
fn a_rewind_past_gemmas_window_is_computed_again() {
    let Some(path) = real_model(GEMMA) else { return };
    check_window(&path, Setup { n_ctx: 1024, chunk: 128, ..small(0) }, &synthetic(1000, Some(2)), &[(150, false), (960, true)]);
}

// ---------------------------------------------------------------------------------------------------------------------
// Events.

#[test]
fn events_come_in_order_and_add_up() {
    let Some(path) = windowed() else { return };
    let model = small(512).open(&path);
    let mut session = model.session().unwrap();
    let prompt = tiny_tokens(300, 4);
    let options =
        GenerateOptions { top_logprobs: 7, sampling: SamplingParams { seed: Some(1), ..SamplingParams::plain(1.0) }, ..greedy(20) };
    for reused in [0, 299] {
        let (stats, all) = events(&mut session, &prompt, &options);
        assert_eq!((stats.reused_tokens, stats.prompt_tokens, stats.n_tokens, stats.n_decode_steps), (reused, 300, 20, 19));
        let mut last = reused;
        let mut n_tokens = 0;
        for event in &all {
            match event {
                Seen::Prefill(done, total) => {
                    assert!(n_tokens == 0 && *done > last && *done - last <= 64 && *total == 300, "{event:?} after {last}");
                    last = *done;
                }
                Seen::Token(id, logprob, top, _) => {
                    assert_eq!(last, 300, "tokens come after the prompt");
                    n_tokens += 1;
                    assert!(top.len() == 7 && top.is_sorted_by(|a, b| a.1 > b.1 || (a.1 == b.1 && a.0 < b.0)), "{top:?}");
                    assert!(top.iter().all(|t| t.1 <= 0.0) && top.iter().map(|t| t.1.exp()).sum::<f32>() <= 1.0001, "{top:?}");
                    match top.iter().find(|t| t.0 == *id) {
                        Some(t) => assert_eq!(t.1, *logprob),
                        None => assert!(*logprob <= top[6].1),
                    }
                }
                Seen::Text(_) => assert_eq!(n_tokens, 20),
            }
        }
        assert_eq!(n_tokens, 20);
    }
}

/// Log-probabilities are those of the logits.
#[test]
fn logprobs_are_the_logits_own() {
    let Some(path) = real_model(SMOLLM2) else { return };
    let model = small(128).open(&path);
    let prompt = synthetic(20, None);
    let (_, all) = events(&mut model.session().unwrap(), &prompt, &GenerateOptions { top_logprobs: 5, ..greedy(4) });
    let mut engine = selvedge::Engine::new(model.inner().clone()).unwrap();
    let mut tokens = prompt.clone();
    for event in &all {
        let Seen::Token(id, logprob, top, _) = event else { continue };
        let mut logits = Vec::new();
        engine.rollback(selvedge::SeqId(0), 0);
        feed(&mut engine, &tokens, 64, &(tokens.len() - 1..tokens.len()), &mut |_, l| logits = l.to_vec());
        assert_eq!(argmax(&logits), id.0 as usize);
        let sum = logsumexp(&logits);
        for (t, p) in top.iter().chain([&(*id, *logprob)]) {
            let expected = f64::from(logits[t.0 as usize]) - sum;
            assert!((f64::from(*p) - expected).abs() < 1e-4, "{t:?}: {p}, expected {expected}");
        }
        tokens.push(*id);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Cancel.

/// Each event is answered by an end once; the session goes on from there as if nothing had been.
#[test]
fn an_end_asked_for_at_any_event_leaves_a_session_that_goes_on() {
    let (Some(m01), Some(windowed)) = (m01(), windowed()) else { return };
    for path in [m01, windowed] {
        let model = small(256).open(&path);
        let prompt = tiny_tokens(150, 5);
        let options = greedy(12);
        let (_, all) = events(&mut model.session().unwrap(), &prompt, &options);
        let n_ends = all.iter().filter(|e| !matches!(e, Seen::Text(_))).count();
        assert_eq!(n_ends, 3 + 12);
        let mut session = model.session().unwrap();
        for end in 0..n_ends {
            session.reset();
            let mut n = 0;
            let stats = session
                .generate(&prompt, &options, &CancelToken::new(), &mut |e| {
                    assert!(n <= end || matches!(e, Event::Text(_)), "nothing but held back text comes after the end");
                    n += 1;
                    if n == end + 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })
                .unwrap();
            assert_eq!(stats.finish, Finish::Cancelled, "event {end}");
            let fed = session.tokens().len();
            assert_eq!(fed, if end < 3 { 150.min(64 * (end + 1)) } else { 150 + end - 3 }, "event {end}");
            let (stats, again) = events(&mut session, &prompt, &options);
            assert_eq!(stats.reused_tokens, fed.min(149));
            let tokens = |e: &[Seen]| e.iter().filter(|e| !matches!(e, Seen::Prefill(..))).cloned().collect::<Vec<_>>();
            assert_eq!(tokens(&again), tokens(&all), "event {end}");
        }
    }
}

#[test]
fn a_cancel_before_after_and_twice_is_harmless() {
    let Some(path) = m01() else { return };
    let model = small(256).open(&path);
    let mut session = model.session().unwrap();
    let (prompt, cancel) = (tiny_tokens(100, 6), CancelToken::new());
    cancel.cancel();
    cancel.cancel();
    let reply = session.complete(&prompt, &greedy(5), &cancel).unwrap();
    assert_eq!((reply.stats.finish, reply.ids.len(), session.tokens().len()), (Finish::Cancelled, 0, 0));
    cancel.reset();
    let reply = session.complete(&prompt, &greedy(5), &cancel).unwrap();
    cancel.cancel();
    assert_eq!(reply.stats.finish, Finish::Length);
    assert_eq!(complete(&mut session, &prompt, &greedy(5)).ids, reply.ids);
    // In load too.
    let error = Model::open_with(&path, &ModelOptions::default(), &cancel, &mut |_, _, _| {}).unwrap_err();
    assert!(matches!(&error, Error::Load(e) if e.is_cancelled()), "{error}");
    let Some(path) = real_model(SMOLLM2) else { return };
    let cancel = CancelToken::new();
    let error = Model::open_with(&path, &small(64).options(), &cancel, &mut |_, done, total| {
        if done > 0 && done < total {
            cancel.cancel();
        }
    });
    assert!(matches!(&error, Err(Error::Load(e)) if e.is_cancelled()), "{error:?}");
}

/// Cancels at moments that nobody chose, until the reply is done: it is what it would have been.
fn check_random_cancels(model: &Model, prompt: &[TokenId], n: usize, rounds: usize) {
    let start = Instant::now();
    let expected = complete(&mut model.session().unwrap(), prompt, &greedy(n));
    // Moments all over the whole reply, however fast the machine is.
    let longest = start.elapsed();
    let mut session = model.session().unwrap();
    let mut x = 1_u64;
    let mut n_cancelled = 0;
    for _ in 0..rounds {
        session.reset();
        let mut ids = Vec::new();
        while ids.len() < n {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let delay = longest.mul_f64((x >> 40) as f64 / f64::from(1 << 24));
            let cancel = CancelToken::new();
            let tokens = [prompt, &ids].concat();
            let finish = std::thread::scope(|scope| {
                let other = cancel.clone();
                scope.spawn(move || {
                    std::thread::sleep(delay);
                    other.cancel();
                });
                let stats = session.generate(&tokens, &greedy(n - ids.len()), &cancel, &mut |e| {
                    if let Event::Token { id, .. } = e {
                        ids.push(id);
                    }
                    ControlFlow::Continue(())
                });
                stats.unwrap().finish
            });
            assert!(matches!(finish, Finish::Cancelled | Finish::Length), "{finish:?}");
            n_cancelled += usize::from(finish == Finish::Cancelled);
            let all = [prompt, &ids].concat();
            assert_eq!(session.tokens(), &all[..session.tokens().len()], "what is committed is what was fed");
        }
        assert_eq!(ids, expected.ids);
    }
    assert!(n_cancelled > 0, "no cancel hit");
}

#[test]
fn cancels_at_random_moments_change_nothing() {
    let Some(path) = windowed() else { return };
    check_random_cancels(&small(512).open(&path), &tiny_tokens(400, 7), 12, 25);
    let Some(path) = real_model(SMOLLM2) else { return };
    check_random_cancels(&Setup { chunk: 16, ..small(256) }.open(&path), &synthetic(100, None), 6, 4);
}

/// Case 24: how long after a cancel the call may still run: 50 ms or one layer, five times that for a machine with other
/// work and the checks of a test build.
const CANCEL_WITHIN: Duration = Duration::from_millis(250);

#[test]
fn a_cancel_in_a_long_prefill_takes_effect_soon() {
    let Some(path) = real_model(SMOLLM2) else { return };
    let prompt = synthetic(6000, None);
    let open = |chunk: usize| Setup { n_ctx: 6144, chunk, max_wanted: 1, ..Setup::default() }.open(&path);
    // Cancels `delay` after the prompt's `n_steps`th step.
    let cancelled = |model: &Model, chunk: usize, n_steps: usize, delay: u64| {
        let mut session = model.session().unwrap();
        let cancel = CancelToken::new();
        let (tell, told) = std::sync::mpsc::channel();
        let (stats, late) = std::thread::scope(|scope| {
            let other = cancel.clone();
            let canceller = scope.spawn(move || {
                told.iter().take(n_steps).for_each(drop);
                std::thread::sleep(Duration::from_millis(delay));
                other.cancel();
                Instant::now()
            });
            let stats = session.generate(&prompt, &greedy(1), &cancel, &mut |_| {
                let _ = tell.send(());
                ControlFlow::Continue(())
            });
            (stats.unwrap(), Instant::now().duration_since(canceller.join().unwrap()))
        });
        assert_eq!(stats.finish, Finish::Cancelled);
        let done = session.tokens().len();
        println!("cancelled {delay} ms after {n_steps} steps: {done} tokens were done, back {late:?} later");
        assert!(done < 6000 && done.is_multiple_of(chunk) && done >= n_steps * chunk, "whole steps are committed: {done}");
        (session, late)
    };
    // In the midst of a long step; the best of three, as other work on the machine only ever slows.
    let model = open(512);
    let late = (0..3).map(|i| cancelled(&model, 512, 0, 200 + 50 * i).1).min().unwrap();
    assert!(late < CANCEL_WITHIN, "{late:?} after the cancel");
    // Behind some short ones.
    let model = open(32);
    let (mut session, _) = cancelled(&model, 32, 2, 20);
    // What is there is right, whatever was cut short.
    let prompt = &prompt[..session.tokens().len() + 30];
    let reply = complete(&mut session, prompt, &greedy(3));
    let fresh = complete(&mut model.session().unwrap(), prompt, &greedy(3));
    assert_eq!((reply.ids, reply.logprobs), (fresh.ids, fresh.logprobs));
}

// ---------------------------------------------------------------------------------------------------------------------
// Damaged numbers.

/// Writes a copy of a model, changed.
fn changed(path: &Path, name: &str, change: impl FnOnce(&mut Writer<'_>)) -> PathBuf {
    let bytes = std::fs::read(path).unwrap();
    let mut writer = Writer::from_gguf(&Gguf::parse(&bytes).unwrap());
    change(&mut writer);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sessions");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, writer.to_bytes().unwrap()).unwrap();
    path
}

/// Sets numbers of an F32 tensor.
fn set(writer: &mut Writer<'_>, tensor: &str, range: std::ops::Range<usize>, value: f32) {
    let tensor = writer.tensors_mut().iter_mut().find(|t| t.name == tensor).unwrap();
    assert_eq!(tensor.ty, TensorType::F32);
    for i in range {
        tensor.data.to_mut()[i * 4..][..4].copy_from_slice(&value.to_le_bytes());
    }
}

fn non_finite(error: &SessionError) -> (String, Option<u32>) {
    match error {
        SessionError::Step(StepError::Backend(BackendError::NonFinite { node, layer })) => (node.clone(), *layer),
        other => panic!("{other}"),
    }
}

/// Weights that are numbers but overflow: told by the layer, in prefill and in decode, and the session lives on.
#[test]
fn numbers_that_overflow_are_an_error_that_names_the_layer() {
    let Some(folder) = case("arch") else { return };
    for (file, d_model) in [("llama.f32.gguf", 64), ("gemma3.f32.gguf", 64)] {
        let path = folder.join(file);
        let healthy = small(128).open(&path);
        for layer in [0, 1, 2] {
            if !healthy.graph().nodes.iter().any(|n| n.layer == Some(layer)) {
                continue;
            }
            let tensor = format!("blk.{layer}.ffn_norm.weight");
            let path = changed(&path, &format!("huge-{layer}-{file}"), |w| set(w, &tensor, 0..d_model, 3e38));
            for backend in ["cpu", "reference"] {
                let model = Setup { backend, ..small(128) }.open(&path);
                let mut session = model.session().unwrap();
                for n in [1, 20, 100] {
                    let error = session.complete(&tiny_tokens(n, 1), &greedy(2), &CancelToken::new()).unwrap_err();
                    let (node, found) = non_finite(&error);
                    assert!(found == Some(layer), "{file} on {backend}: {node} of layer {found:?}, expected {layer}");
                    assert!(error.to_string().contains(&format!("blk.{layer}.")), "{error}");
                    assert!(session.tokens().len() < n.max(1));
                }
            }
        }
        // One token's embedding: an error where the token is fed, and the session goes on without it.
        let path = changed(&path, &format!("embedding-{file}"), |w| set(w, "token_embd.weight", 7 * d_model..7 * d_model + 1, f32::MAX));
        let tied = healthy
            .graph()
            .nodes
            .iter()
            .filter(|n| n.op.weights().iter().any(|w| healthy.graph().weights[w.weight.0 as usize].tensor == "token_embd.weight"))
            .count()
            > 1;
        if tied {
            continue;
        }
        let model = small(128).open(&path);
        let mut session = model.session().unwrap();
        let good: Vec<TokenId> = tiny_tokens(90, 2).into_iter().filter(|t| t.0 != 7).collect();
        let before = complete(&mut session, &good, &greedy(3));
        let bad = [&good[..70], &[TokenId(7)], &good[70..]].concat();
        let error = session.complete(&bad, &greedy(3), &CancelToken::new()).unwrap_err();
        assert!(error.to_string().contains("blk.0."), "{error}");
        let after = complete(&mut session, &good, &greedy(3));
        assert_eq!((after.ids, after.logprobs), (before.ids, before.logprobs));
    }
}

/// A NaN in any tensor of a file is never sampled from: opening names the tensor, or a step the layer.
#[test]
fn a_nan_in_any_tensor_is_an_error() {
    let Some(folder) = case("arch") else { return };
    let path = folder.join("llama.f32.gguf");
    let bytes = std::fs::read(&path).unwrap();
    let tensors: Vec<String> = Gguf::parse(&bytes).unwrap().tensors.iter().map(|t| t.name.to_owned()).collect();
    for (i, tensor) in tensors.iter().enumerate() {
        for (what, value) in [("nan", f32::NAN), ("inf", f32::INFINITY)] {
            let path = changed(&path, &format!("{what}-{i}.gguf"), |w| set(w, tensor, 5..6, value));
            match Model::open(&path, &small(64).options()) {
                Ok(model) => {
                    // Embeddings stay in the file: token 0 has the number.
                    let error = model.session().unwrap().complete(&[TokenId(9), TokenId(0)], &greedy(1), &CancelToken::new()).unwrap_err();
                    assert!(tensor == "token_embd.weight", "{tensor} was packed");
                    non_finite(&error);
                }
                Err(Error::Load(LoadError::Backend(BackendError::DamagedTensor { tensor: found }))) => assert_eq!(&found, tensor),
                Err(e) => panic!("{tensor}: {e}"),
            }
            let validate = ModelOptions { validate: true, ..small(64).options() };
            let error = Model::open(&path, &validate).expect_err(tensor);
            assert!(error.to_string().contains(tensor.as_str()), "{error}");
        }
    }
}

#[test]
fn damaged_scales_of_a_file_are_found() {
    let Some(folder) = case("hostile") else { return };
    for (file, tensor) in [("n01_q8_scale_nan.gguf", "blk.0.attn_q.weight"), ("n09_q8_scale_nan_ffn.gguf", "blk.0.ffn_down.weight")] {
        for backend in ["cpu", "reference"] {
            for validate in [true, false] {
                let options = ModelOptions { validate, ..Setup { backend, ..small(64) }.options() };
                let found = Model::open(&folder.join(file), &options).and_then(|model| {
                    let reply = model.session()?.complete(&[TokenId(1), TokenId(5), TokenId(9)], &greedy(3), &CancelToken::new())?;
                    Ok(reply.ids)
                });
                let error = match found {
                    // The reference isn't asked to look at weights that nobody validates.
                    Ok(_) if backend == "reference" && !validate => continue,
                    Ok(ids) => panic!("{file} on {backend}, validate {validate}: {ids:?}"),
                    Err(error) => error.to_string(),
                };
                assert!(error.contains(tensor) || error.contains("blk.0") || !validate, "{file} on {backend}: {error}");
            }
        }
    }
}

/// Hostile numbers that are none the less numbers.
#[test]
fn huge_embeddings_and_tiny_scales_end_well() {
    let Some(folder) = case("hostile") else { return };
    let model = small(64).open(&folder.join("n07_embd_huge.gguf"));
    match model.session().unwrap().complete(&[TokenId(1), TokenId(5), TokenId(9)], &greedy(3), &CancelToken::new()) {
        Ok(reply) => assert!(reply.logprobs.iter().all(|p| p.is_finite())),
        Err(error) => assert!(!non_finite(&error).0.is_empty()),
    }
    let model = small(64).open(&folder.join("n04_q8_scale_subnormal.gguf"));
    let reply = complete(&mut model.session().unwrap(), &ids(&serde_json::json!([1, 5, 9])), &greedy(3));
    assert!(reply.ids.len() == 3 && reply.logprobs.iter().all(|p| p.is_finite()));
}

/// Keys and values in half precision and in f32 lead to the same choice; types whose blocks don't fit heads of 8 are
/// refused with a reason (case 19).
#[test]
fn element_types_of_the_cache_agree() {
    let Some(path) = m01() else { return };
    let prompt = [TokenId(1), TokenId(5), TokenId(9)];
    for (name, kv) in KvElem::ALL {
        match Model::open(&path, &Setup { kv, ..small(64) }.options()) {
            Ok(model) => assert_eq!(complete(&mut model.session().unwrap(), &prompt, &greedy(1)).ids, [TokenId(61)], "{name}"),
            Err(error) => {
                assert!(!matches!(kv, KvElem::F16 | KvElem::F32), "{name}: {error}");
                assert!(error.to_string().contains('8') && error.to_string().contains("head"), "{name}: {error}");
            }
        }
    }
}
