/* SPDX-License-Identifier: BSD-3-Clause */
/* What each kind of fabric wants set, with the source of every value. Settings count on jobs of
 * several nodes only, never replace what the user set, and are left out where the library's own
 * choice is the same: InfiniBand, RoCE and TCP need no row (NCCL_IB_HCA and the interfaces come
 * from the cards, in environ_network.c), and since aws-ofi-nccl 1.6 neither does EFA (its
 * doc/efa-env-var.md: FI_PROVIDER and FI_EFA_USE_DEVICE_RDMA are chosen by the plug-in,
 * RDMAV_FORK_SAFE must not be set). */
#include "plan/plan.h"

#include <string.h>

#include "plan/parts.h"

#define SHS "HewlettPackard/shs-ccl-docs, ccl_env.sh"

static bool mentions(const struct env *env, const char *name, const char *part)
{
	const char *value = env ? env_get(env, name) : NULL;

	return value && strstr(value, part);
}

/* NCCL ends with "invalid usage" when NCCL_NET names a plug-in that it cannot load, and runs on
 * TCP without a word when NCCL_NET is unset and the plug-in is there but unnamed. */
static bool has_ofi_plugin(const struct machine *card, const struct env *env)
{
	return mentions(env, "LD_LIBRARY_PATH", "ofi-nccl") ||
	       mentions(env, "LD_LIBRARY_PATH", "ofi-rccl") ||
	       mentions(env, "NCCL_NET_PLUGIN", "ofi");
}

/* The alternative rendezvous needs the job's VNI made without rendezvous gets. */
static bool without_rdzv_get(const struct machine *card, const struct env *env)
{
	return mentions(env, "SLURM_NETWORK", "disable_rdzv_get");
}

static bool has_gpu(const struct machine *card, const struct env *env)
{
	return card->gpu_count > 0;
}

/* GH200: NVIDIA 2342 (96 GB), 2348 (144 GB). */
static bool has_gh200(const struct machine *card, const struct env *env)
{
	for (size_t g = 0; g < card->gpu_count; g++)
		if (card->gpus[g].vendor == 0x10de &&
		    (card->gpus[g].device == 0x2342 || card->gpus[g].device == 0x2348))
			return true;
	return false;
}

const struct fabric_setting fabric_settings[] = {
	{NIC_SLINGSHOT, "NCCL_NET", "AWS Libfabric", has_ofi_plugin,
	 "the libfabric plug-in or nothing: TCP would be twenty times slower without a word", SHS},
	{NIC_SLINGSHOT, "NCCL_CROSS_NIC", "1", has_gpu, "all NICs are on one network", SHS},
	{NIC_SLINGSHOT, "NCCL_NET_GDR_LEVEL", "PHB", has_gpu,
	 "GPUs and NICs under one host bridge exchange data directly", SHS},
	{NIC_SLINGSHOT, "FI_MR_CACHE_MONITOR", "userfaultfd", NULL,
	 "the default, memhooks, deadlocks with NCCL", SHS},
	{NIC_SLINGSHOT, "FI_CXI_DISABLE_HOST_REGISTER", "1", has_gpu,
	 "registering host memory with CUDA inside libfabric deadlocks with NCCL", SHS},
	{NIC_SLINGSHOT, "FI_CXI_DEFAULT_CQ_SIZE", "131072", NULL,
	 "smaller event queues overflow on large jobs", SHS},
	{NIC_SLINGSHOT, "FI_CXI_DEFAULT_TX_SIZE", "2048", NULL, "room for NCCL's outstanding sends",
	 SHS},
	{NIC_SLINGSHOT, "FI_CXI_RDZV_PROTO", "alt_read", without_rdzv_get,
	 "the step was made with --network=disable_rdzv_get", SHS},
	{NIC_SLINGSHOT, "FI_CXI_RDZV_EAGER_SIZE", "0", without_rdzv_get,
	 "the step was made with --network=disable_rdzv_get", SHS},
	{NIC_SLINGSHOT, "FI_CXI_RX_MATCH_MODE", "hybrid", NULL,
	 "falls back to software matching when the NIC's queues are full", SHS},
	{NIC_SLINGSHOT, "NCCL_PROTO", "^LL128", has_gh200,
	 "LL128 gave silently wrong sums on GH200 over Slingshot (NVIDIA/nccl issue 2001)",
	 "NVIDIA/nccl issue 2001; CSCS documentation, communication/nccl"},
	{0},
};

const char *fabric_title(enum nic_kind kind)
{
	switch (kind) {
	case NIC_ETHERNET:
		return "Ethernet";
	case NIC_ROCE:
		return "RoCE";
	case NIC_OTHER_FABRIC:
		return "another fabric";
	case NIC_EFA:
		return "EFA";
	case NIC_SLINGSHOT:
		return "Slingshot";
	case NIC_INFINIBAND:
		return "InfiniBand";
	}
	return "Ethernet";
}
