"""Adapters: one file per framework, each imported only where its framework is used.

    lightning      EttCallback() in Trainer(callbacks=[…]); by itself under `ett run`
    transformers   EttCallback() in Trainer(callbacks=[…]); or report_to="torchett"
    accelerate     EttTracker() in Accelerator(log_with=[…])
    torchtitan     TITAN_STRUCT_LOGGER_HANDLERS=torchett.record.adapters.torchtitan.register
    ray            RAY_TRAIN_CALLBACKS=torchett.record.adapters.ray.EttCallback
    deepspeed      engine = watched(engine)
    torchrec       pipeline = watched(TrainPipelineSparseDist(…))

An adapter that fails is off after one warning; training goes on.
"""
