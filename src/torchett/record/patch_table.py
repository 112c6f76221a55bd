"""The table of patches: every attribute of a foreign object that torchett may replace.

    target    module:Class.attribute; `*` stands for several names
    lever     what it belongs to; `ett run --without LEVER` leaves it alone
    default   record: wherever a record is kept · run: under `ett run` · asked: by its own option

`record/patches.py` is the one place that changes them, and only by a row of this table.
"""

from dataclasses import dataclass
from typing import Literal

Default = Literal["record", "run", "asked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """One attribute of a foreign object (torch's, the user's) that torchett may replace."""

    target: str  # module:Class.attribute; `*` stands for several names
    lever: str  # the feature it belongs to; `--without` takes this name
    default: Default
    reason: str  # one line, for `ett run --explain`
    needs: tuple[str, ...] = ()  # private names it relies on, as module:Class.attribute


def _hooks(target: str, reason: str, default: Default = "run") -> Patch:
    return Patch(target=target, lever="hooks", default=default, reason=reason)


_DCP = "torch.distributed.checkpoint.state_dict"
HOOKS: tuple[Patch, ...] = (
    _hooks("torch.serialization:save", "time a save, and which step it holds", "record"),
    _hooks("torch.serialization:load", "which step a loaded file holds", "record"),
    _hooks("torch.nn.modules.module:Module.load_state_dict", "whether it was restored", "record"),
    _hooks("torch.optim.optimizer:Optimizer.load_state_dict", "whether it was restored", "record"),
    _hooks(_DCP + "_saver:save", "time a save, and which step it holds", "record"),
    _hooks(_DCP + "_saver:async_save", "time a save, and which step it holds", "record"),
    _hooks(_DCP + "_loader:load", "which step a loaded folder holds", "record"),
    _hooks("safetensors.torch:save_file", "time a save, and which step it holds", "record"),
    _hooks("torch.utils.data.dataloader:DataLoader.__init__", "time the making of a loader"),
    _hooks("torch.utils.data.dataloader:DataLoader.__iter__", "time the start of its workers"),
    _hooks("torch.utils.data.dataloader:_BaseDataLoaderIter.__next__", "waits for data"),
    _hooks(
        "torch.nn.modules.module:Module._compiled_call_impl",
        "begin of a forward pass; on the outermost trained modules alone",
    ),
    _hooks(
        "torch.nn.modules.module:Module._replicate_for_data_parallel",
        "the replicas of DataParallel have none of the above",
    ),
    _hooks(
        "torch.nn.modules.module:Module.__init__", "time the making of a model; which there are"
    ),
    _hooks("torch.nn.modules.module:Module.__setstate__", "which modules were copied or loaded"),
    _hooks("torch.nn.modules.module:Module.eval", "begin of an evaluation"),
    _hooks("torch.nn.modules.module:Module.zero_grad", "end of a step without an optimizer"),
    _hooks("torch.optim.optimizer:Optimizer.__init__", "the model is complete"),
    _hooks("torch.optim.optimizer:Optimizer.zero_grad", "end of a step of a compiled optimizer"),
    _hooks("torch.autograd:_engine_run_backward", "begin and end of a backward pass"),
    _hooks("torch.autograd.grad_mode:no_grad.__enter__", "evaluation without gradients"),
    _hooks("torch.autograd.grad_mode:no_grad.__exit__", "evaluation without gradients"),
    _hooks("torch.autograd.grad_mode:inference_mode.__enter__", "evaluation without gradients"),
    _hooks("torch.autograd.grad_mode:inference_mode.__exit__", "evaluation without gradients"),
    _hooks("torch.amp.grad_scaler:GradScaler.step", "an update that is skipped ends a step, too"),
    _hooks("torch.distributed.distributed_c10d:init_process_group", "time process_group_init"),
    _hooks("torch.distributed.distributed_c10d:new_group", "time process_group_init"),
    _hooks("torch.cuda:_lazy_init", "time device_init"),
    _hooks("datasets.load:load_dataset", "time the reading of a dataset"),
    _hooks("datasets.arrow_dataset:Dataset.map", "time the mapping of a dataset"),
)

_TUNING = ("autotune_to_one_config", "_coordinate_descent_tuning", "_precompile_config")
_GROUPS = (
    *("_world", "_get_default_group", "_get_default_timeout", "_new_process_group_helper"),
    *("_register_process_group", "GroupMember", "Backend", "BackendConfig"),
)

TABLE: tuple[Patch, ...] = (
    *HOOKS,
    # --- record: adapters and imports ---
    Patch(
        target="sys:meta_path",
        lever="import-hook",
        default="record",
        reason="levers wait for an import of the script's instead of importing by themselves",
    ),
    Patch(
        target="sys:meta_path",
        lever="imports",
        default="run",
        reason="the script's imports are timed, until the record is open",
    ),
    Patch(
        target="transformers.integrations.integration_utils:INTEGRATION_TO_CALLBACK",
        lever="transformers",
        default="run",
        reason='report_to="torchett" names the callback: one entry more in a public registry',
    ),
    Patch(
        target="lightning.pytorch.trainer.trainer:Trainer.save_checkpoint",
        lever="lightning",
        default="run",
        reason="a Trainer's saves are timed: no callback tells when one is over",
    ),
    Patch(
        target="accelerate.accelerator:Accelerator.*",
        lever="accelerate",
        default="asked",
        reason="EttTracker.watch(accelerator): save_state and load_state of this one are timed",
    ),
    Patch(
        target="deepspeed.runtime.engine:DeepSpeedEngine.*",
        lever="deepspeed",
        default="asked",
        reason="watched(engine): steps, saves and loads of this one are timed; it has no callbacks",
    ),
    Patch(
        target="torchrec.distributed.train_pipeline.train_pipelines:TrainPipeline.progress",
        lever="torchrec",
        default="asked",
        reason="watched(pipeline): each progress() of this one is a step; it has no callbacks",
    ),
    *(
        Patch(
            target=f"torchft.{name}",
            lever="torchft",
            default="record",
            reason="a committed step is a step, a refused one is lost; waits for a quorum",
            needs=(
                "torchft.manager:Manager.current_step",
                "torchft.manager:Manager.is_participating",
            ),
        )
        for name in (
            "manager:Manager.start_quorum",
            "manager:Manager.wait_quorum",
            "manager:Manager.should_commit",
            "optim:OptimizerWrapper.step",
            "local_sgd:LocalSGD.__enter__",
            "local_sgd:DiLoCo.__enter__",
        )
    ),
    *(
        Patch(
            target=f"nvidia_resiliency_ext.inprocess.{name}",
            lever="in-process",
            default="record",
            reason="each restart of the wrapped function is an attempt of its own",
        )
        for name in (
            "monitor_process:MonitorProcess.record_interrupted",
            "monitor_thread:MonitorThread.__init__",
            "monitor_thread:MonitorThread.shutdown",
            "state:State.advance",
        )
    ),
    # --- compile ---
    *(
        Patch(
            target=f"torch._dynamo.{name}",
            lever="compile-watch",
            default="record",
            reason="a compile's phases, metrics and failed guards are recorded while it runs",
        )
        for name in (
            "utils:ChromiumEventLogger.log_event_start",
            "utils:ChromiumEventLogger.log_event_end",
            "utils:ChromiumEventLogger.log_instant_event",
            "utils:add_compilation_metrics_to_chromium",
            "convert_frame:get_and_maybe_log_recompilation_reasons",
        )
    ),
    *(
        Patch(
            target=f"triton.runtime.autotuner:Autotuner.{name}",
            lever="pins",
            default="run",
            reason="kernels of the user's are tuned once: winners are kept beside Inductor's cache",
        )
        for name in ("__init__", "cache", "_bench", "prune_configs")
    ),
    Patch(
        target="torch._inductor.runtime.triton_heuristics:CachingAutotuner.benchmark_all_configs",
        lever="pins",
        default="run",
        reason="Inductor's kernels are tuned once: winners are kept beside its cache",
    ),
    Patch(
        target="triton.knobs:compilation.listener",
        lever="pins",
        default="run",
        reason="how long a kernel compiled is recorded; a listener of the user's is called, too",
    ),
    Patch(
        target="torch._dynamo.callback:callback_handler.clear",
        lever="compile-cache",
        default="asked",
        reason="torch._dynamo.reset() drops callbacks: those of the library are installed again",
    ),
    *(
        Patch(
            target=f"torch._inductor.runtime.triton_heuristics:CachingAutotuner.{name}",
            lever="winners",
            default="asked",
            reason="an archive of compiled code keeps the kernels that won, not all candidates",
            needs=tuple(
                f"torch._inductor.runtime.triton_heuristics:CachingAutotuner.{other}"
                for other in _TUNING
            ),
        )
        for name in _TUNING
    ),
    # --- startup ---
    Patch(
        target="torch.utils.data.dataloader:_BaseDataLoaderIter.__init__",
        lever="plan",
        default="asked",
        reason="a loader that begins in a stage of ett.Plan draws its seed from the stage's own",
    ),
    Patch(
        target="torch.utils.data.dataloader:DataLoader.generator",
        lever="plan",
        default="asked",
        reason="of this one loader, while it begins",
    ),
    Patch(
        target="torch.distributed.distributed_c10d:new_group",
        lever="lazy-groups",
        default="asked",
        reason="inside ett.lazy_groups(): a group is made when it is first used",
        needs=tuple(f"torch.distributed.distributed_c10d:{name}" for name in _GROUPS),
    ),
    Patch(
        target="torch.distributed.distributed_c10d:*",
        lever="audit",
        default="asked",
        reason="until the first step: each collective and each new group is timed",
    ),
    *(
        Patch(
            target=name,
            lever="shard-metadata",
            default="asked",
            reason="inside local_shard_metadata(): tables are described with few gathers",
        )
        for name in (
            "torch.distributed._shard.sharded_tensor.api:ShardedTensor._init_from_local_shards",
            "torchrec.distributed.embedding:ShardedEmbeddingCollection._initialize_torch_state",
            "torchrec.distributed.mc_modules:ShardedManagedCollisionCollection"
            "._initialize_torch_state",
            "torchrec.distributed.sharding.*:*.get_sharded_states_to_register",
        )
    ),
    Patch(
        target="torchrec.distributed.planner.planners:EmbeddingShardingPlanner.plan",
        lever="sharding-plans",
        default="asked",
        reason="inside cached_sharding_plans(): a plan found earlier is read from a folder",
    ),
    Patch(
        target="torch._dynamo:optimize",
        lever="standby-model",
        default="asked",
        reason="a rank notes which models it compiles, for standbys to compile ahead",
    ),
    Patch(
        target="torch._dynamo.eval_frame:OptimizedModule.__call__",
        lever="standby-model",
        default="asked",
        reason="a rank notes the second training call of a compiled model; then it is put back",
    ),
    Patch(
        target="torch._inductor.compile_fx:fx_codegen_and_compile",
        lever="standby-model",
        default="asked",
        reason="a standby takes code from the cache or not at all; put back before the rank",
    ),
    # --- feed ---
    Patch(
        target="torch.utils.data._utils.worker:_worker_loop",
        lever="light-batches",
        default="asked",
        reason="loaders' workers send small tensors in the pipe instead of shared memory",
    ),
    Patch(
        target="torch.utils.data._utils.collate:default_collate_fn_map",
        lever="light-batches",
        default="asked",
        reason="in workers: small samples are not stacked in shared memory",
    ),
    # --- checkpoint ---
    Patch(
        target="torch.utils.data._utils.signal_handling:_set_worker_signal_handlers",
        lever="preemption-notice",
        default="asked",
        reason="workers of a loader outlive a signal to the whole group while their trainer saves",
    ),
    *(
        Patch(
            target=f"transformers.trainer:Trainer.{name}",
            lever="trainer-checkpoints",
            default="asked",
            reason=f"TrainerCheckpoints(trainer, …): this one {what}",
        )
        for name, what in (
            ("train", "resumes after the newest checkpoint"),
            ("_load_from_checkpoint", "has its weights restored later, with all else"),
        )
    ),
    # --- launch ---
    *(
        Patch(
            target=f"sys:{name}",
            lever="bytecode",
            default="run",
            reason="bytecode is kept in a folder of the user's where torch is installed without",
        )
        for name in ("pycache_prefix", "dont_write_bytecode")
    ),
    Patch(
        target="torch.distributed.run:elastic_launch",
        lever="agent",
        default="run",
        reason="torchrun starts our subclass of its agent: standbys, and restarts on record",
    ),
    Patch(
        target="torch.distributed.elastic.agent.server.local_elastic_agent:start_processes",
        lever="agent",
        default="run",
        reason="the agent starts a rank in a standby",
    ),
    Patch(
        target="torch.distributed.elastic.rendezvous.dynamic_rendezvous:_delay",
        lever="agent",
        default="run",
        reason="one node alone does not pause up to 0.3 s to spare a store that others share",
    ),
    Patch(
        target="os:putenv",
        lever="standby",
        default="run",
        reason="a warning when the script sets what torch read when the standby imported it",
    ),
    Patch(
        target="torch.distributed.distributed_c10d:destroy_process_group",
        lever="fast-exit",
        default="run",
        reason="gloo's destructor, which may deadlock with its own thread, does not run",
        needs=(
            "torch.distributed.distributed_c10d:_world.pg_map",
            "torch.distributed.distributed_c10d:GroupMember.WORLD",
        ),
    ),
)
