//! Tests of optimizer settings, of clipping, and of the state that checkpoints use.

use super::*;

#[test]
fn optimizer_settings_and_names_match_transformers() {
    let expected = OptimizerConfig {
        optim: OptimizerKind::AdamW,
        adam_beta1: 0.9,
        adam_beta2: 0.999,
        adam_epsilon: 1e-8,
        weight_decay: 0.0,
        max_grad_norm: 1.0,
        moments: MomentsDType::F32,
        seed: 0,
    };
    assert_eq!(OptimizerConfig::default(), expected);
    let muon = MuonConfig { momentum: 0.95, nesterov: true, ns_steps: 5, eps: 1e-7, adjust_lr: AdjustLr::Original };
    assert_eq!(MuonConfig::default(), muon);
    assert_eq!(OptimizerKind::parse("muon", " , "), Ok(OptimizerKind::Muon(muon)), "empty pairs are ignored");
    let parse = |args: &str| match OptimizerKind::parse("muon", args) {
        Ok(OptimizerKind::Muon(config)) => Ok(config),
        Ok(OptimizerKind::AdamW) => panic!("muon"),
        Err(error) => Err(error),
    };
    assert_eq!(parse("ns_steps=1").map(|c| c.ns_steps), Ok(1));
    assert_eq!(parse("ns_steps=100, eps = 1e-9").map(|c| (c.ns_steps, c.eps)), Ok((100, 1e-9)));
    assert_eq!(parse("momentum=0").map(|c| c.momentum), Ok(0.0));
    assert_eq!(parse("nesterov=TRUE,adjust_lr_fn=original"), Ok(muon));
    for (args, why) in [
        ("ns_steps=0", "optim_args: ns_steps must be at least 1 and at most 100, got 0"),
        ("ns_steps=101", "optim_args: ns_steps must be at least 1 and at most 100, got 101"),
        ("momentum=1", "optim_args: momentum must be at least 0 and below 1, got 1"),
        ("momentum=-0.1", "optim_args: momentum must be at least 0 and below 1, got -0.1"),
        ("eps=0", "optim_args: eps must be finite and above 0, got 0"),
        ("eps=inf", "optim_args: eps must be finite and above 0, got inf"),
        ("adjust_lr_fn=other", "optim_args: adjust_lr_fn must be original or match_rms_adamw, got `other`"),
        ("eps=x", "optim_args: `x` is not a valid value for `eps`"),
        ("eps", "optim_args: `eps` must have the form key=value"),
    ] {
        assert_eq!(parse(args), Err(why.to_owned()));
    }
    let all: Vec<&str> = OptimizerKind::names().collect();
    assert_eq!((all[0], all.last()), ("adamw_torch", Some(&"muon")));
    let error = OptimizerKind::parse("adamw", "x=1").unwrap_err();
    let why = "optim_args: the optimizer adamw has no argument `x`; its arguments: none (AdamW's settings are the keys \
               adam_beta1, adam_beta2, adam_epsilon and weight_decay)";
    assert_eq!(error, why);
}

/// A gradient whose norm is above the limit is scaled down, and 0 means no limit.
#[test]
fn gradients_are_clipped_by_the_measured_norm() {
    let ctx = Context::cpu(Isa::best(), 1);
    let model = Arc::new(ModelConfig::parse(CONFIG).unwrap());
    let after = |max_grad_norm: f64, scale: f32, optim: &str| {
        let mut weights = Weights::random(ctx.memory(), &model, 1).unwrap();
        let optim = OptimizerKind::parse(optim, "").unwrap();
        // ε is large, so that AdamW's step depends on the size of the gradient.
        let config = OptimizerConfig { max_grad_norm, optim, adam_epsilon: 1.0, ..OptimizerConfig::default() };
        let mut optimizer = Optimizer::new(ctx.memory(), &model, None, config);
        let mut grads = Grads::trained(ctx.memory(), &model, None);
        grads.params.tensors_mut().into_iter().for_each(|t| t.view_mut().fill(scale));
        let norm = optimizer.measure(&ctx, &grads).unwrap().norm;
        optimizer.step(&ctx, &mut NextParams::in_place(&mut weights.params), &grads.params, 0.5).unwrap();
        assert_eq!(optimizer.steps, 1);
        let buffer = optimizer.state().trees().next().unwrap();
        let name = "model.layers.0.mlp.down_proj.weight";
        (norm, weights.params.read("model.norm.weight").unwrap()[0], buffer.tensors.get(name).unwrap()[0])
    };
    let (norm, plain, _) = after(0.0, 0.5, "adamw_torch");
    assert_eq!(after(1e9, 0.5, "adamw_torch").1, plain, "a gradient below the limit is not changed");
    let (_, half, _) = after(norm / 2.0, 0.5, "adamw_torch");
    let (_, smaller, _) = after(0.0, 0.25, "adamw_torch");
    assert!((half - smaller).abs() < 1e-5 && (half - plain).abs() > 1e-3, "{half} {smaller} {plain}");
    // After one step Muon's momentum is 1 − μ times the clipped gradient.
    for (most, expected) in [(0.0, 0.5), (norm / 2.0, 0.25), (2.0 * norm, 0.5)] {
        let (_, _, buffer) = after(most, 0.5, "muon");
        assert!((f64::from(buffer) / (0.05 * expected) - 1.0).abs() < 1e-4, "{most}: {buffer}");
    }
}

#[test]
fn optimizer_state_cannot_change_while_a_checkpoint_uses_it() {
    let ctx = Context::cpu(Isa::best(), 1);
    let (mut weights, mut optimizer, grads) = parts(&ctx);
    let names: Vec<_> = optimizer.state().trees().map(|tree| (tree.name, tree.dtype)).collect();
    assert_eq!(names, [("exp_avg", FileDType::Bf16), ("exp_avg_sq", FileDType::Bf16)]);
    assert!(optimizer.state().masters().is_none() && optimizer.state_mut().is_ok());
    let held = optimizer.hold();
    optimizer.measure(&ctx, &grads).unwrap();
    let mut step = |optimizer: &mut Optimizer| {
        optimizer.step(&ctx, &mut NextParams::in_place(&mut weights.params), &grads.params, 1e-3)
    };
    assert!(matches!(step(&mut optimizer), Err(Error::Held)) && matches!(optimizer.state_mut(), Err(Error::Held)));
    assert_eq!(optimizer.steps, 0);
    drop(held);
    step(&mut optimizer).unwrap();
    assert_eq!(optimizer.steps, 1);
    let names: Vec<_> = optimizer.state_mut().unwrap().trees_mut().map(|(name, _)| name).collect();
    assert_eq!(names, ["exp_avg", "exp_avg_sq"]);
}

/// Master weights are initialised from the weights once.
#[test]
fn only_models_that_compute_in_bf16_have_master_weights() {
    let ctx = Context::cpu(Isa::best(), 1);
    let model = ModelConfig::parse(CONFIG).unwrap().computing_in(DType::Bf16).unwrap();
    let model = Arc::new(model);
    let mut weights = Weights::random(ctx.memory(), &model, 1).unwrap();
    let mut optimizer = Optimizer::new(ctx.memory(), &model, None, OptimizerConfig::default());
    let grads = Grads::trained(ctx.memory(), &model, None);
    let before = weights.params.read("lm_head.weight").unwrap();
    let master = |optimizer: &Optimizer| optimizer.state().masters().unwrap().get("lm_head.weight").unwrap();
    assert!(master(&optimizer).iter().all(|&x| x == 0.0));
    for step in 0..2 {
        optimizer.measure(&ctx, &grads).unwrap();
        optimizer.step(&ctx, &mut NextParams::in_place(&mut weights.params), &grads.params, 1e-3).unwrap();
        assert_eq!(master(&optimizer), before, "a zero gradient changes nothing, step {step}");
        weights.params.write("lm_head.weight", &vec![0.0; before.len()]);
    }
    assert!(optimizer.state_mut().unwrap().masters_mut().is_some());
    let lora = LoraConfig::default();
    let adapted = Optimizer::new(ctx.memory(), &model, Some(&lora), OptimizerConfig::default());
    assert!(adapted.state().masters().unwrap().tensors().is_empty(), "adapters are f32 and have no masters");
}

#[test]
fn optimizer_names_and_arguments_of_transformers_are_parsed() {
    assert_eq!(OptimizerKind::parse("adamw_torch_fused", ""), Ok(OptimizerKind::AdamW));
    let mut names: Vec<&str> = OptimizerKind::names().collect();
    assert!(names.iter().all(|name| OptimizerKind::parse(name, "").is_ok()));
    assert_eq!(OptimizerKind::parse(names[0], ""), Ok(OptimizerKind::default()));
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "two optimizers have the same name");
    let muon = OptimizerKind::parse("muon", "momentum=0.9, nesterov=False,adjust_lr_fn=match_rms_adamw").unwrap();
    let expected =
        MuonConfig { momentum: 0.9, nesterov: false, adjust_lr: AdjustLr::MatchRmsAdamW, ..Default::default() };
    assert_eq!(muon, OptimizerKind::Muon(expected));
    for (optim, args, why) in [
        ("no_such_name", "", "unknown optimizer `no_such_name`: expected one of adamw_torch, "),
        ("adamw_torch", "momentum=0.9", "no argument `momentum`; its arguments: none"),
        ("muon", "beta=0.9", "no argument `beta`; its arguments: momentum, nesterov, ns_steps, eps, adjust_lr_fn"),
        ("muon", "momentum", "key=value"),
        ("muon", "momentum=much", "`much`"),
        ("muon", "momentum=1.5", "below 1"),
        ("muon", "ns_steps=0", "at least 1"),
    ] {
        let error = OptimizerKind::parse(optim, args).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}
