"""Command lines of training and serving as people write them, without any secret.

Option names are those of torchrun, DeepSpeed, Accelerate, the Trainer of transformers, Lightning's
CLI, Hydra, Megatron-LM, vLLM and Slurm.
"""

# ruff: noqa: E501 (lists of names)

import random

_HEX = "0123456789abcdef"
_VALUES = {
    "i": "1 2 8 64 4096 32768 0 -1 128256 1_000_000",
    "f": "0.1 3e-4 1e-8 0.95 1.0 5e-05 .5 inf 2.5e9 10%",
    "b": "true false True False yes no on off 0 1",
    "p": "data/train /mnt/ssd/run-2026-01-01T10:00:00 configs/llama3_8b.yaml ~/x ./out/ckpt_000100 "
    "s3://bucket/key/part-00001.parquet gs://b/tokens/shard-00012-of-01024.arrow hf://meta/Llama-3 "
    "file:///tmp/a%20b user@host:/srv/data ssh://git@github.com/a/b.git ../secret_sharing/cfg.json "
    "/home/me/.cache/huggingface/hub/models--gpt2/snapshots/607a30d783dfa663caf39e06633721c8d4cfcd7e "
    "https://h.example:8080/a@b?page=2&id=77&order=key",
    "s": "bf16 cuda:0 adamw_torch_fused fp8_e4m3 nccl cosine <|eot|> sk_learn live_variables key auto "
    "flash_attention_2 steps rank0,rank1 NCCL_DEBUG=INFO a100-80gb:8 me none paged_adamw_8bit pass "
    "Authorization login password2vec token_classification 10.0.0.1:29500 host:5432 us-east-1a",
    "m": "gpt2 meta-llama/Meta-Llama-3.1-8B-Instruct Qwen/Qwen2.5-7B mistralai/Mixtral-8x7B-v0.1 "
    "sentence-transformers/all-MiniLM-L6-v2 google/vit-base-patch16-224-in21k timm/resnet50.a1_in1k "
    "microsoft/deberta-v3-base-finetuned-key-phrase EleutherAI/gpt-neox-20b",
    "l": "['q_proj','k_proj'] [1,2,3] {lr:0.1} 0,1,2,3 a=1,b=2 q_proj,k_proj,v_proj *.key_proj.*",
}
# Program: (start of the command line, form of options, options by kind of value).
_PROGRAMS: tuple[tuple[str, str, dict[str, str]], ...] = (
    (
        "torchrun --standalone train.py",
        "--{name}={value} --{name}_{value}",
        {
            "i": "nproc-per-node nnodes node-rank master-port max-restarts monitor-interval",
            "s": "rdzv-backend rdzv-endpoint rdzv-id master-addr start-method role local-addr",
            "p": "log-dir rdzv-conf",
            "l": "redirects tee local-ranks-filter",
        },
    ),
    (
        "deepspeed --num_gpus 8 train.py",
        "--{name}_{value} --{name}={value}",
        {
            "p": "hostfile deepspeed_config autotuning ds_config checkpoint_dir",
            "i": "num_nodes master_port zero_stage gradient_accumulation_steps train_batch_size",
            "s": "include exclude launcher master_addr module_id bind_core_list ssh_port user",
            "b": "force_multi bind_cores_to_rank no_ssh enable_each_rank_log save_pid",
        },
    ),
    (
        "accelerate launch --multi_gpu run_clm.py",
        "--{name}_{value}",
        {
            "i": "num_processes num_machines machine_rank main_process_port fsdp_min_num_params "
            "deepspeed_hpz_partition_size max_new_tokens num_beams pad_token_id eos_token_id",
            "s": "mixed_precision dynamo_backend main_process_ip rdzv_backend fsdp_sharding_strategy "
            "same_network deepspeed_multinode_launcher fsdp_auto_wrap_policy fsdp_state_dict_type",
            "p": "config_file deepspeed_config_file hostfile tokenizer_name tokenizer token_file",
        },
    ),
    (
        "python run_mlm.py",
        "--{name}_{value} --{name}={value}",
        {
            "m": "model_name_or_path tokenizer_name hub_model_id config_name",
            "i": "per_device_train_batch_size seed save_steps max_seq_length preprocessing_num_workers "
            "eval_accumulation_steps dataloader_num_workers max_source_length num_train_epochs "
            "generation_max_length max_target_length warmup_steps logging_steps save_total_limit "
            "max_tokens num_attention_heads num_key_value_heads key_dim num_secret_sharing passes",
            "f": "learning_rate weight_decay adam_beta1 adam_epsilon max_grad_norm warmup_ratio "
            "mlm_probability label_smoothing_factor neftune_noise_alpha token_dropout pass",
            "b": "do_train fp16 bf16 tf32 push_to_hub overwrite_output_dir load_best_model_at_end "
            "use_fast_tokenizer trust_remote_code group_by_length use_auth_token hub_private_repo "
            "skip_special_tokens add_bos_token include_tokens_per_second include_num_input_tokens_seen",
            "s": "lr_scheduler_type optim eval_strategy report_to run_name hub_strategy text_column "
            "metric_for_best_model mask_token sep_token cls_token pad_token eos_token token_type "
            "dataset_name sort_key author session_name parallelism_config input_key label_key",
            "p": "output_dir train_file resume_from_checkpoint logging_dir cache_dir vocab_file",
        },
    ),
    (
        "python main.py fit",
        "--{name}_{value} --{name}={value}",
        {
            "i": "trainer.max_epochs trainer.devices data.batch_size seed_everything model.d_key "
            "trainer.accumulate_grad_batches model.num_tokens data.num_workers model.n_passes",
            "f": "model.lr trainer.gradient_clip_val optimizer.weight_decay model.token_drop_rate",
            "s": "trainer.accelerator trainer.strategy trainer.precision optimizer lr_scheduler "
            "trainer.callbacks+=ModelCheckpoint model.activation data.sort_key trainer.profiler",
            "p": "config ckpt_path trainer.default_root_dir trainer.logger.save_dir data.token_path",
        },
    ),
    (
        "python train.py -m",
        "{name}={value} +{name}={value} ++{name}={value}",
        {
            "i": "model.layers trainer.max_steps hydra.sweeper.n_trials data.max_tokens model.key_size "
            "hydra.launcher.gpus_per_node hydra.launcher.timeout_min training.pass data.num_tokens",
            "f": "optimizer.lr optim.betas.0 model.attn.key_dropout loss.token_weight",
            "s": "db model experiment hydra/launcher logger model.tokenizer.pad_token data.key env.host",
            "l": "optimizer.betas callbacks.keys data.columns hydra.sweeper.params",
            "p": "hydra.run.dir data.root model.tokenizer.path model.checkpoint ckpt.resume_from",
        },
    ),
    (
        "python pretrain_gpt.py",
        "--{name}_{value}",
        {
            "i": "tensor-model-parallel-size pipeline-model-parallel-size num-layers hidden-size "
            "num-attention-heads seq-length max-position-embeddings micro-batch-size kv-channels "
            "global-batch-size train-iters num-query-groups moe-router-topk num-experts eod-mask-loss "
            "distributed-timeout-minutes padded-vocab-size make-vocab-size-divisible-by",
            "f": "lr min-lr init-method-std clip-grad adam-beta2 moe-aux-loss-coeff hidden-dropout",
            "s": "tokenizer-type lr-decay-style position-embedding-type transformer-impl null-token "
            "moe-token-dispatcher-type split sequence-parallel distributed-backend json-keys",
            "p": "data-path vocab-file merge-file save load tensorboard-dir tokenizer-model",
        },
    ),
    (
        "vllm serve meta-llama/Llama-3-8B",
        "--{name}_{value} --{name}={value}",
        {
            "i": "port max-model-len max-num-seqs max-num-batched-tokens tensor-parallel-size block-size "
            "max-logprobs num-speculative-tokens swap-space max-long-partial-prefills api-server-count",
            "f": "gpu-memory-utilization rope-theta cpu-offload-gb",
            "s": "host dtype kv-cache-dtype tokenizer-mode served-model-name load-format quantization "
            "tool-call-parser reasoning-parser distributed-executor-backend guided-decoding-backend "
            "response-role chat-template-content-format uvicorn-log-level",
            "b": "enable-prefix-caching enforce-eager enable-auto-tool-choice return-tokens-as-token-ids "
            "disable-log-requests enable-prompt-tokens-details",
            "m": "tokenizer revision speculative-model lora-modules",
            "p": "download-dir ssl-keyfile ssl-certfile chat-template api-key-file allowed-origins",
        },
    ),
    (
        "srun -p login -w node[01-04] uprof run --backend cuda train.py",
        "--{name}={value} -{letter}_{value}",
        {
            "i": "nodes ntasks gpus-per-task cpus-per-task iterations warmup batch-size",
            "s": "partition account constraint gres job-name mail-user mem report qos",
            "p": "output error chdir project-root",
        },
    ),
)


def harmless_command(chance: random.Random) -> list[str]:
    """Return the arguments of a command."""
    start, forms, options = chance.choice(_PROGRAMS)
    arguments = start.split()
    if chance.random() < 0.2:
        arguments[:0] = chance.choice(
            (
                *(["CUDA_VISIBLE_DEVICES=0,1"], ["TOKENIZERS_PARALLELISM=false", "nohup"]),
                *(["docker", "run", "-u", "1000:1000", "-p", "8080:80", "image"], ["time"]),
                *(
                    ["ssh", "-p", "22", "me@host"],
                    ["mpirun", "-np", "8", "-x", "PATH", "-u", "0:1"],
                ),
            )
        )
    for _ in range(chance.randrange(2, 12)):
        kind = chance.choice(list(options))
        name = chance.choice(options[kind].split())
        value = chance.choice(_VALUES[kind].split())
        if name.endswith("revision") or (kind in "mp" and chance.random() < 0.1):
            value = "".join(chance.choices(_HEX, k=chance.choice((7, 12, 40, 64))))
        form = chance.choice(forms.split())
        letter = chance.choice("puncNJAwa")
        arguments += (
            form.format(name=name, value=f"\0{value}", letter=letter).split("_\0")
            if ("_{value}" in form)
            else [form.format(name=name, value=value, letter=letter)]
        )
    return arguments
