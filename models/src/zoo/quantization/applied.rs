//! Whether what a bare configuration says of packed weights is said of any that the model has. Tensors are what they are;
//! without them a rule that meets no weight would leave a price of plain ones, as if nothing had been said.

use super::Quantization;
use crate::error::ModelError;
use crate::model::Model;
use plimsoll_kernels::Format;

impl Quantization {
    /// What whoever reads the price of a model that was built by this should know: formats that are stated and that no
    /// weight is in.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] where no weight is in any: how they are stored is not known.
    pub(in crate::zoo) fn missed(&self, model: &Model) -> Result<Option<String>, ModelError> {
        if self.is_none() {
            return Ok(None);
        }
        let Self { key, .. } = self;
        if model.matrices.iter().all(|matrix| matrix.format.is_float()) {
            if self.ragged_stay_plain {
                return Ok(Some(format!(
                    "{key} packs no weight of this model, whose rows are no whole groups: priced plain"
                )));
            }
            return Err(ModelError::unsupported(
                format!("{key}, which packs none of the weights of {}", model.architecture),
                "in which format those are stored is not stated",
            ));
        }
        // Rows that are no whole groups are why a format may be missing, and entries by name may be of a tower.
        if self.ragged_stay_plain {
            return Ok(None);
        }
        let mut missed: Vec<String> = Vec::new();
        for (_, scheme) in &self.rules {
            if !model.matrices.iter().any(|matrix| scheme.is(matrix.format)) {
                missed.push(scheme.format(Format::BF16).to_string());
            }
        }
        missed.dedup();
        Ok((!missed.is_empty()).then(|| {
            format!("{key} states {} of weights that this model does not have", missed.join(" and "))
        }))
    }
}
