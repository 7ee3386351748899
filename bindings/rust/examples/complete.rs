//! The smallest program: a prompt in, a reply out.

use selvedge::{CancelToken, GenerateOptions, Model, ModelOptions, SamplingParams};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(prompt)) = (args.next(), args.next()) else {
        return Err("usage: complete MODEL.gguf PROMPT".into());
    };
    let model = Model::open(
        path.as_ref(),
        &ModelOptions {
            backend: selvedge::BackendOptions { backend: std::env::var("B").ok(), ..Default::default() },
            ..Default::default()
        },
    )?;
    let mut session = model.session()?;
    let prompt = model.chat(&serde_json::json!([{ "role": "user", "content": prompt }]))?;
    let options = GenerateOptions { max_tokens: Some(24), sampling: SamplingParams::greedy(), ..GenerateOptions::default() };
    let reply = session.complete(&prompt, &options, &CancelToken::new())?;
    println!("{}\n{:?}", reply.text, reply.stats);
    Ok(())
}
