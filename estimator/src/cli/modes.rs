//! Which flags say anything together: one that would change nothing is a misunderstanding, and is refused by its name.

use super::Failure;
use crate::peers::Engine;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

/// The flags that were written on a command line.
pub struct Given {
    /// Each by its field and as people write it.
    flags: Vec<(String, String)>,
}

impl Given {
    /// Those of a command's matches.
    pub fn of(command: &Command, matches: &ArgMatches) -> Self {
        let written = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let flags = command.get_arguments().filter(|arg| written(arg.get_id().as_str())).map(|arg| {
            let named = arg.get_long().map(|long| format!("--{long}"));
            let named =
                named.or_else(|| arg.get_value_names().and_then(|n| n.first()).map(|n| n.to_string()));
            let id = arg.get_id().to_string();
            (id.clone(), named.unwrap_or(id))
        });
        Self { flags: flags.collect() }
    }

    /// Those of a verb: a command whose matches are of a subcommand.
    pub fn of_verb(command: &Command, matches: &ArgMatches) -> Self {
        let verb = matches.subcommand().and_then(|(name, m)| Some((command.find_subcommand(name)?, m)));
        verb.map_or_else(|| Self { flags: Vec::new() }, |(verb, matches)| Self::of(verb, matches))
    }

    fn has(&self, id: &str) -> bool {
        self.flags.iter().any(|(given, _)| given == id)
    }

    /// Nothing but these beside the flag of `mode`.
    fn alone(&self, mode: &str, but: &[&str]) -> Result<(), Failure> {
        match self.flags.iter().find(|(id, _)| id != mode && !but.contains(&id.as_str())) {
            Some((_, flag)) if self.has(mode) => {
                Err(Failure::Usage(format!("{flag} changes nothing with --{}", mode.replace('_', "-"))))
            }
            _ => Ok(()),
        }
    }

    /// Whether each of an estimate's flags changes anything beside the others. What depends on the machine's memory is
    /// found out where that is known.
    ///
    /// # Errors
    /// [`Failure::Usage`], naming the flag that has no effect and the one because of which it has none.
    pub fn check(&self, engine: Option<Engine>, flash_attention: bool) -> Result<(), Failure> {
        self.alone("list_devices", &["json"])?;
        self.alone("fleet", &["json", "verbose"])?;
        let useless = |flag: &str, beside: &str| {
            Err(Failure::Usage(format!("{flag} changes nothing with {beside}: leave one of them out")))
        };
        if self.has("chart") && self.has("json") {
            return useless("--chart", "--json");
        }
        for (id, flag) in [("webgpu_limits", "--webgpu-limits"), ("no_subgroups", "--no-subgroups")] {
            if self.has(id) && !self.has("adapter") {
                return Err(Failure::Usage(format!("{flag} changes nothing without --adapter")));
            }
        }
        let Some(engine) = engine else { return Ok(()) };
        let runtime = format!("--runtime {}", engine.name());
        let ours = ["snapshots", "cache_limit", "max_binding", "image_size"];
        if let Some((_, flag)) = self.flags.iter().find(|(id, _)| ours.contains(&id.as_str())) {
            return useless(flag, &runtime);
        }
        // The one allocation whose size is a closed form is that of scores that are not streamed.
        if self.has("max_allocation") && (engine != Engine::LlamaCpp || flash_attention) {
            let but =
                "of an engine the largest allocation is known for llama.cpp with --no-flash-attention alone";
            return Err(Failure::Usage(format!("--max-allocation changes nothing with {runtime}: {but}")));
        }
        if self.has("kv_fp8") {
            let formats = [("kv", "--kv"), ("kv_k", "--kv-k"), ("kv_v", "--kv-v")];
            if let Some((_, flag)) = formats.into_iter().find(|(id, _)| self.has(id)) {
                return useless(flag, "--kv-fp8");
            }
        }
        Ok(())
    }
}
