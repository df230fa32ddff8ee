//! What else is named beside a model: companions on its device, and what leaves it.

use super::args::{build, on_hub, open};
use super::estimate::Args;
use super::{Failure, bytes};
use crate::company::Company;
use crate::error::{PlanError, grouped};
use crate::geometry::Geometry;
use crate::others::{Other, Others, Replaced, Role};
use crate::pricer::Pricer;
use plimsoll_kernels::Profile;
use plimsoll_models::{Model, ModelError};
use std::path::{Path, PathBuf};

/// The models that are named beside this one; their files are added to `inputs`.
pub(super) fn companions(args: &Args, inputs: &mut Vec<PathBuf>) -> Result<Vec<(Role, Model)>, Failure> {
    let drafts = args.draft.iter().map(|path| (path, Role::Draft));
    let all = drafts.chain(args.beside.iter().map(|path| (path, Role::Beside)));
    let mut opened = |path: &PathBuf| {
        let checkpoint = open(path)?;
        inputs.extend(checkpoint.files());
        build(&checkpoint, Some(path))
    };
    all.map(|(path, role)| Ok((role, opened(path)?))).collect()
}

/// Prices everything else that is named: what stays on the device, and what leaves it, whose files are added to `inputs`.
/// With it what is said of those that leave and cannot be priced, where nothing is credited.
pub(super) fn others(
    args: &Args,
    company: &Company<'_>,
    geometry: &Geometry,
    profile: &Profile,
    credited: bool,
    inputs: &mut Vec<PathBuf>,
) -> Result<(Others, Vec<String>), Failure> {
    // What stands against one of them is in the verdict.
    let mut others = Others { here: company.able(geometry), ..Others::default() };
    let mut unknown = Vec::new();
    for text in &args.replaces {
        let path = Path::new(text);
        let there = on_hub(path).is_some() || path.exists();
        match bytes::positive(text) {
            Ok(bytes) if !there => {
                others.replaced.push(Replaced { name: "what is replaced".into(), bytes });
            }
            Err(why) if !there => {
                return Err(Failure::Usage(format!("--replaces {text:?}: no such file, and {why}")));
            }
            _ => {
                let checkpoint = open(path)?;
                inputs.extend(checkpoint.files());
                let model = build(&checkpoint, Some(path))?;
                match leaving(args, &model, profile) {
                    Ok(other) => others.replaced.push(Replaced { name: other.name, bytes: other.total }),
                    Err(error) => {
                        let what = format!("--replaces {text}");
                        let detail =
                            format!("what becomes free with it is not known: {error}; give the bytes");
                        if credited {
                            return Err(ModelError::Unsupported { what, detail }.into());
                        }
                        unknown.push(format!("{what}: {detail}"));
                    }
                }
            }
        }
    }
    Ok((others, unknown))
}

/// A model that leaves, as it is by itself: how it was started is not known, and has nothing to do with what is asked of the
/// model that comes. So answers that vary a geometry are answers to one and the same credit.
fn leaving(args: &Args, model: &Model, profile: &Profile) -> Result<Other, PlanError> {
    let own = Geometry::default_for(model.context_max);
    match args.peer.engine() {
        Some(engine) => {
            let own = Geometry { prefill_chunk: engine.default_chunk(), ..own };
            let options = args.peer.options(args.limits.max_allocation);
            Other::of_engine(model, Role::Beside, &own, engine, &options)
        }
        None => Other::model(&Pricer::new(model, profile), Role::Beside, &own),
    }
}

/// What is said of a companion that was made for less context than is asked for.
pub(super) fn shorter(other: &Other, geometry: &Geometry) -> Option<String> {
    (other.context < geometry.context).then(|| {
        let (own, asked) = (grouped(other.context.into()), grouped(geometry.context.into()));
        format!(
            "{}: priced with a context of {own}, all that it was made for, and not with the {asked} asked for",
            other.name
        )
    })
}
