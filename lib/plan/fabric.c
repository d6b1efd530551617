/* SPDX-License-Identifier: BSD-3-Clause */
/* What each kind of fabric needs set, with the source of every value. Settings apply only to jobs
 * of several nodes and never replace what the user set. A setting is omitted if the library's own
 * choice is the same; an empty profile says why. NCCL_IB_HCA and the interfaces come from the
 * inventories, in environment_network.c. */
#include "plan/plan.h"

#include <string.h>

#include "plan/plan_internal.h"

#define SHS "HewlettPackard/shs-ccl-docs, ccl_env.sh"

static bool mentions(const struct env *env, const char *name, const char *part)
{
	const char *value = env ? env_get(env, name) : NULL;

	return value && strstr(value, part);
}

static const struct plan_fabric profiles[] = {
	{NIC_INFINIBAND, "InfiniBand", "NCCL's own transport (verbs)",
	 "NCCL_IB_HCA if a node also has other HCAs; NCCL's defaults for the rest (NCCL_IB_TIMEOUT "
	 "20, NCCL_IB_RETRY_CNT 7); NCCL uses sockets only for its bootstrap",
	 "NVIDIA/nccl 2.30.7, src/transport/net_ib"},
	{NIC_ROCE, "RoCE", "NCCL's own transport (verbs)",
	 "NCCL_IB_HCA if a node also has other HCAs; NCCL finds the GID index itself (since 2.21: "
	 "RoCE v2 with an IPv4 address)",
	 "NVIDIA/nccl 2.30.7, src/transport/net_ib: NCCL_IB_GID_INDEX -1, NCCL_IB_ROCE_VERSION_NUM "
	 "2"},
	{NIC_SLINGSHOT, "Slingshot", "aws-ofi-nccl, libfabric's cxi",
	 "the settings that HPE recommends for NCCL, each with its reason", SHS},
	{NIC_EFA, "EFA", "aws-ofi-nccl, libfabric's efa",
	 "nothing: since version 1.6 the plug-in chooses FI_PROVIDER and FI_EFA_USE_DEVICE_RDMA "
	 "itself; RDMAV_FORK_SAFE must not be set",
	 "aws/aws-ofi-nccl, doc/efa-env-var.md"},
	{NIC_OTHER_FABRIC, "another fabric", "its own libraries",
	 "nothing: no settings are known for it", "no measurements"},
	{NIC_ETHERNET, "Ethernet", "NCCL's sockets",
	 "the interface; NCCL chooses the number of its sockets and threads itself",
	 "NVIDIA/nccl 2.30.7, src/transport/net_socket"},
};

const struct plan_fabric *plan_fabric(enum nic_kind kind)
{
	const struct plan_fabric *last = &profiles[sizeof profiles / sizeof *profiles - 1];

	for (const struct plan_fabric *profile = profiles; profile < last; profile++)
		if (profile->kind == kind)
			return profile;
	return last;
}

const char *fabric_title(enum nic_kind kind)
{
	return plan_fabric(kind)->title;
}

/* NCCL fails with "invalid usage" if NCCL_NET names a plug-in that it cannot load. It silently runs
 * on TCP if NCCL_NET is unset and the plug-in is present but unnamed. */
static bool has_ofi_plugin(const struct inventory *inventory, const struct env *env)
{
	return mentions(env, "LD_LIBRARY_PATH", "ofi-nccl") ||
	       mentions(env, "LD_LIBRARY_PATH", "ofi-rccl") ||
	       mentions(env, "NCCL_NET_PLUGIN", "ofi");
}

/* The alternative rendezvous requires that the job's VNI was created without rendezvous gets. */
static bool without_rdzv_get(const struct inventory *inventory, const struct env *env)
{
	return mentions(env, "SLURM_NETWORK", "disable_rdzv_get");
}

static bool has_gpu(const struct inventory *inventory, const struct env *env)
{
	return inventory->gpu_count > 0;
}

/* GH200: NVIDIA 2342 (96 GB), 2348 (144 GB). */
bool fabric_has_gh200(const struct inventory *inventory, const struct env *env)
{
	for (size_t g = 0; g < inventory->gpu_count; g++)
		if (inventory->gpus[g].vendor == 0x10de &&
		    (inventory->gpus[g].device == 0x2342 || inventory->gpus[g].device == 0x2348))
			return true;
	return false;
}

const struct fabric_setting fabric_settings[] = {
	{NIC_SLINGSHOT, "NCCL_NET", "AWS Libfabric", has_ofi_plugin,
	 "NCCL fails if it cannot load the libfabric plug-in, instead of silently using TCP, which "
	 "is twenty times slower",
	 SHS},
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
	 "the job step was started with --network=disable_rdzv_get", SHS},
	{NIC_SLINGSHOT, "FI_CXI_RDZV_EAGER_SIZE", "0", without_rdzv_get,
	 "the job step was started with --network=disable_rdzv_get", SHS},
	{NIC_SLINGSHOT, "FI_CXI_RX_MATCH_MODE", "hybrid", NULL,
	 "falls back to software matching when the NIC's queues are full", SHS},
	{NIC_SLINGSHOT, "NCCL_PROTO", "^LL128", fabric_has_gh200,
	 "LL128 gave silently wrong sums on GH200 over Slingshot (NVIDIA/nccl issue 2001)",
	 "NVIDIA/nccl issue 2001; CSCS documentation, communication/nccl"},
	{0},
};
