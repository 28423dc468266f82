//! Steps that ranks take on their parts of the parameters.

use super::*;
use crate::optimizer::muon::MuonConfig;
use kernels::check::normal;

/// The bits of a tree, tensor by tensor.
fn bits(params: &Params) -> Vec<Vec<u32>> {
    params.tensors().iter().map(|tensor| tensor.to_vec_f32().into_iter().map(f32::to_bits).collect()).collect()
}

/// The bits of the weights, and of the optimizer's state.
fn all_bits(weights: &Weights, optimizer: &Optimizer) -> Vec<Vec<Vec<u32>>> {
    let state = optimizer.state();
    let trees = state.masters().into_iter().chain(state.trees().map(|tree| tree.tensors));
    std::iter::once(bits(&weights.params)).chain(trees.map(|tree| bits(tree.params))).collect()
}

/// Ranks update their parts one after the other here, as they do at the same time in a run: in place, or into another
/// slot of the weights. The embedding and the head have more than one chunk each.
#[test]
fn steps_on_parts_have_the_bits_of_steps_on_everything() {
    let ctx = Context::cpu(Isa::best(), 2);
    let muon = OptimizerKind::Muon(MuonConfig::default());
    for (compute, moments, optim) in [
        (DType::F32, MomentsDType::F32, OptimizerKind::AdamW),
        (DType::Bf16, MomentsDType::Bf16, OptimizerKind::AdamW),
        (DType::Bf16, MomentsDType::F32, muon),
    ] {
        let json = CONFIG.replace(r#""vocab_size": 40"#, r#""vocab_size": 5000"#);
        let model = Arc::new(ModelConfig { compute, ..ModelConfig::parse(&json).unwrap() });
        let config = OptimizerConfig { optim, moments, weight_decay: 0.1, ..OptimizerConfig::default() };
        for world_size in [2, 4] {
            let random = || Weights::random(ctx.memory(), &model, 1).unwrap();
            let (mut expected, mut found, mut other) = (random(), random(), random());
            let mut whole = Optimizer::new(ctx.memory(), &model, None, config);
            let mut first = Optimizer::new(ctx.memory(), &model, None, config);
            let paths = first.divide(ctx.memory(), &model, None, &Sharing::default(), world_size).unwrap();
            let rank =
                |rank| Optimizer::for_rank(ctx.memory(), &model, None, config, [rank, world_size], &paths).unwrap();
            let mut others: Vec<_> = (1..world_size).map(rank).collect();
            let mut grads = Grads::trained(ctx.memory(), &model, None);
            for step in 0..4u64 {
                for (i, tensor) in grads.params.tensors_mut().into_iter().enumerate() {
                    let values: Vec<f32> = normal(100 * step + i as u64, tensor.len());
                    tensor.view_mut().copy_from_f32(&values);
                }
                let norm = whole.measure(&ctx, &grads).unwrap();
                whole.step(&ctx, &mut NextParams::in_place(&mut expected.params), &grads.params, 0.01).unwrap();
                let sums = |part: &Part| grad_norm::sums_of_chunks(&ctx, &part.views(&grads.params)).unwrap();
                let parts = std::iter::once(&first).chain(others.iter().map(|(other, _)| other)).map(Optimizer::part);
                let divided_norm = grad_norm::from_chunks(&parts.flat_map(sums).collect::<Vec<_>>());
                assert_eq!(f64::from(divided_norm[0]).to_bits(), norm.norm.to_bits());
                let is_apart = step % 2 == 1;
                let mut take = |optimizer: &mut Optimizer| {
                    optimizer.steps = step;
                    optimizer.set_norm(divided_norm);
                    let mut next = if is_apart {
                        NextParams::apart(&found.params, &mut other.params)
                    } else {
                        NextParams::in_place(&mut found.params)
                    };
                    optimizer.step(&ctx, &mut next, &grads.params, 0.01).unwrap();
                };
                take(&mut first);
                for (optimizer, lent) in &mut others {
                    for slot in &*lent {
                        slot.borrow().unwrap();
                    }
                    take(optimizer);
                    lent.iter().for_each(Lent::give_back);
                }
                if is_apart {
                    std::mem::swap(&mut found, &mut other);
                }
                assert!(all_bits(&expected, &whole) == all_bits(&found, &first), "{compute:?} {optim:?} {world_size}");
            }
        }
    }
}
