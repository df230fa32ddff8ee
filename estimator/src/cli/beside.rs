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
pub(super) fn others(
    args: &Args,
    company: &Company<'_>,
    geometry: &Geometry,
    profile: &Profile,
    inputs: &mut Vec<PathBuf>,
) -> Result<Others, Failure> {
    // What stands against one of them is in the verdict.
    let mut others = Others { here: company.able(geometry), ..Others::default() };
    for text in &args.replaces {
        let path = Path::new(text);
        let there = on_hub(path).is_some() || path.exists();
        let replaced = match bytes::positive(text) {
            Ok(bytes) if !there => Replaced { name: "what is replaced".into(), bytes },
            Err(why) if !there => {
                return Err(Failure::Usage(format!("--replaces {text:?}: no such file, and {why}")));
            }
            _ => {
                let checkpoint = open(path)?;
                inputs.extend(checkpoint.files());
                let model = build(&checkpoint, Some(path))?;
                let other = match args.peer.engine() {
                    Some(engine) => {
                        let options = args.peer.options(args.limits.max_allocation);
                        Other::of_engine(&model, Role::Beside, geometry, engine, &options)
                    }
                    None => Other::model(&Pricer::new(&model, profile), Role::Beside, geometry),
                };
                let unknown = |error: PlanError| ModelError::Unsupported {
                    what: format!("--replaces {text}"),
                    detail: format!(
                        "with this geometry it could not be there, so that what becomes free is unknown: {error}; give the bytes"
                    ),
                };
                let other = other.map_err(unknown)?;
                Replaced { name: other.name, bytes: other.total }
            }
        };
        others.replaced.push(replaced);
    }
    Ok(others)
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
