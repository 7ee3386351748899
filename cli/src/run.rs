//! `run`: one answer.

use crate::args::{ModelArgs, SamplingArgs, TextArgs};
use crate::error::{CliError, Result};
use crate::os::Interrupt;
use crate::output;
use crate::prompt::{Prompter, TemplateArgs, message};
use crate::reply::Reply;
use clap::Args;
use selvedge::{Finish, ParseSpecial};

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// Continue the text as it stands, without the chat template
    #[arg(long, conflicts_with_all = ["template", "var"])]
    raw: bool,
    /// With --raw: control tokens that the text spells are text
    #[arg(long, requires = "raw")]
    no_parse_special: bool,
    /// A system message before the text
    #[arg(long, value_name = "TEXT", conflicts_with = "raw", allow_hyphen_values = true)]
    system: Option<String>,
    #[command(flatten)]
    template: TemplateArgs,
    /// With --json: the K most probable tokens at each step
    #[arg(long, value_name = "K", default_value_t = 0, requires = "json", value_parser = crate::args::alternatives)]
    top_logprobs: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
}

impl RunArgs {
    pub(crate) fn run(self, json: bool) -> Result<()> {
        self.sampling.check()?;
        let options = self.model.options()?;
        let text = self.text.read()?;
        let interrupt = Interrupt::watch();
        let model = self.model.open(&options, None, interrupt.token())?;
        let prompt = if self.raw {
            let parse = if self.no_parse_special { ParseSpecial::UserDefined } else { ParseSpecial::All };
            model.text().continuation(&text, parse)?
        } else {
            let system = self.system.as_deref().map(|text| message("system", text));
            let messages = system.into_iter().chain([message("user", &text)]).collect();
            Prompter::new(&model, &self.template)?.tokens(&messages)?
        };
        let mut session = model.session()?;
        let generate = self.sampling.options(&model, json, self.top_logprobs);
        let show = &mut |text: &str| if json { Ok(()) } else { output::text(text) };
        let reply = Reply::make(&mut session, &prompt, &generate, interrupt.token(), show)?;
        if json {
            output::json(&reply)?;
        } else if !reply.text.ends_with('\n') {
            output::text("\n")?;
        }
        match reply.why {
            Finish::Cancelled => Err(CliError::Cancelled),
            Finish::Context if !json => {
                output::note(&format!(
                    "the reply ended because the context of {} positions is full: -c sets a longer one",
                    session.n_ctx()
                ));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
