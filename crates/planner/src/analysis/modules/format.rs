//! Module statistics as the JSON of PyTorch's tools. Invariant: statistics that were read are
//! written so that they read the same, bit for bit.

use cranelift_entity::EntityRef;
use serde_json::{Value, json};

use crate::analysis::modules::ModuleInfo;
use crate::units::Seconds;

pub fn document(info: &ModuleInfo) -> Value {
    let names = |order: &[_]| -> Vec<&str> {
        order.iter().map(|&module| info.modules()[module].name.as_str()).collect()
    };
    let pre: Vec<_> = info.modules().keys().collect();
    let stats = info.modules().iter().map(|(module, stats)| {
        let [forward, backward, checkpointing] = info.milliseconds[module];
        let curve = &stats.tradeoff;
        let intercepts = curve.segments.iter().map(|segment| segment.intercept);
        json!({
            "fqn": stats.name,
            "param_per_module": stats.parameters.0,
            "grad_per_module": stats.gradients.0,
            "grad_total": stats.total_gradients.0,
            "act_fw_per_module": stats.forward_activations.0,
            "act_bw_per_module": stats.backward_activations.0,
            "act_grad_per_module": stats.activation_gradients.0,
            "act_total": stats.total_activations.0,
            "input_per_module": stats.input.0,
            "output_per_module": stats.output.0,
            "fw_runtime_per_module": forward,
            "bw_runtime_per_module": backward,
            "is_leaf": stats.is_leaf,
            "sac_runtime": checkpointing,
            "sac_memory": stats.checkpointing_bytes.0,
            "n_segments": curve.segments.len(),
            "slopes": curve.segments.iter().map(|segment| segment.slope).collect::<Vec<_>>(),
            "intercepts": intercepts.collect::<Vec<_>>(),
            "breakpoints": curve.breakpoints,
            "tradeoff_curve": curve.points,
            "index": module.index(),
            "pos_fw_post_order": info.forward_post_position(module),
        })
    });
    json!({ "module_info": {
        "mod_order": {
            "fw_pre_order": names(&pre),
            "bw_pre_order": names(info.backward_pre_order()),
            "fw_post_order": names(info.forward_post_order()),
            "bw_post_order": names(info.backward_post_order()),
        },
        "mod_stats": stats.collect::<Vec<_>>(),
    }})
}

/// Milliseconds that read back as these seconds, if there are any.
pub fn milliseconds(seconds: Seconds) -> f64 {
    let near = seconds.0 * 1e3;
    let exact =
        [near, near.next_up(), near.next_down()].into_iter().find(|near| near / 1e3 == seconds.0);
    exact.unwrap_or(near)
}
