/* SPDX-License-Identifier: BSD-3-Clause */
/* Warnings about variables that do not do what the user meant. */
#include "plan/plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/json.h"
#include "plan/plan_internal.h"

static void add_remark(json_t *list, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add_remark(json_t *list, const char *format, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	json_array_append_new(list, json_text(text));
}

static bool is(const struct env *env, const char *name, const char *value)
{
	const char *text = env_get(env, name);

	return text && !strcmp(text, value);
}

/* ---- interfaces and devices ---- */

/* Take the next entry off a list with commas; false at its end. */
static bool next_entry(const char **at, const char **entry, size_t *length)
{
	*entry = *at;
	*length = strcspn(*at, ",");
	*at += *length + ((*at)[*length] == ',');
	return **entry;
}

/* Does name begin with that text, and end there unless prefix is set? */
static bool matches(const char *name, const char *text, size_t length, bool prefix)
{
	return !strncmp(name, text, length) && (prefix || strlen(name) == length);
}

enum device { INTERFACE = 1, HCA };
static const char *const device_names[] = {NULL, "interface", "HCA", "device"};

/* devices: which of both kinds. */
static bool has(const struct inventory *inventory, int devices, const char *name, size_t length,
		bool prefix)
{
	for (size_t i = 0; devices & INTERFACE && i < inventory->address_count; i++)
		if (matches(inventory->addresses[i].iface, name, length, prefix))
			return true;
	for (size_t n = 0; n < inventory->nic_count; n++)
		if ((devices & INTERFACE &&
		     matches(inventory->nics[n].net, name, length, prefix)) ||
		    (devices & HCA && matches(inventory->nics[n].rdma, name, length, prefix)))
			return true;
	return false;
}

/* Each entry of a list must exist on every node that reports its devices. */
static void lint_entries(json_t *list, const struct env *env, const char *name, bool prefix,
			 int devices, const struct inventory *inventories, size_t count)
{
	const char *at = env_get(env, name), *entry;
	size_t length;

	if (!at || strpbrk(at, "^*") || !strcmp(at, "all"))
		return;
	if (*at == '=') {
		prefix = false;
		at++;
	}
	while (next_entry(&at, &entry, &length)) {
		size_t full = strcspn(entry, ",:"), without = 0;
		const char *first = NULL;

		for (size_t n = 0; n < count && length; n++)
			/* A capture may lack the network, which says nothing about its devices. */
			if ((inventories[n].address_count || inventories[n].nic_count) &&
			    !has(&inventories[n], devices, entry, full < length ? full : length,
				 prefix) &&
			    !without++)
				first = inventories[n].node;
		if (without == count && count)
			add_remark(list, "%s names the %s %.*s, which no node has", name,
				   device_names[devices], (int)length, entry);
		else if (without)
			add_remark(list,
				   "%s names the %s %.*s, which %zu of %zu nodes lack (first: %s)",
				   name, device_names[devices], (int)length, entry, without, count,
				   first ? first : "?");
	}
}

/* NCCL matches prefixes: a complete name in the list may also be the prefix of another. */
static void lint_prefix_match(json_t *list, const struct env *env, const char *name, int devices,
			      const struct inventory *inventory)
{
	const char *value = env_get(env, name), *at = value, *entry;
	size_t count = devices == HCA ? inventory->nic_count : inventory->address_count, length;

	if (!value || *value == '^' || *value == '=')
		return;
	while (next_entry(&at, &entry, &length)) {
		length = strcspn(entry, ",:");
		if (!has(inventory, devices, entry, length, false))
			continue;
		for (size_t i = 0; i < count; i++) {
			const char *other = devices == HCA ? inventory->nics[i].rdma
							   : inventory->addresses[i].iface;

			if (strlen(other) <= length || !matches(other, entry, length, true))
				continue;
			add_remark(
				list,
				"%s=%s also matches %s, whose name begins with %.*s; write =%s for "
				"exact names",
				name, value, other, (int)length, entry, value);
			return;
		}
	}
}

/* A list admits a management HCA: NCCL then waits for it. */
static void lint_management(json_t *list, const struct env *env, const struct inventory *inventory)
{
	const char *value = env_get(env, "NCCL_IB_HCA"), *entry;
	bool exact = value && *value == '=';
	size_t length;

	if (!value || *value == '^')
		return;
	for (size_t n = 0; n < inventory->nic_count; n++) {
		const struct inventory_nic *nic = &inventory->nics[n];
		const char *at = value + exact;

		while (nic->management && *nic->rdma && next_entry(&at, &entry, &length)) {
			if (!matches(nic->rdma, entry, strcspn(entry, ",:"), !exact))
				continue;
			add_remark(list,
				   "NCCL_IB_HCA=%s includes %s, a management NIC: NCCL hangs or is "
				   "slow if it connects over that NIC",
				   value, nic->rdma);
			return;
		}
	}
}

/* ---- values ---- */

static bool has_gpus(const struct inventory *first, const struct env *env)
{
	return first->gpu_count;
}

static bool has_intel_gpus(const struct inventory *first, const struct env *env)
{
	bool intel = false;

	for (size_t g = 0; g < first->gpu_count; g++)
		intel |= first->gpus[g].vendor == 0x8086;
	return intel;
}

static bool lacks_plugin(const struct inventory *first, const struct env *env)
{
	return is(env, "NCCL_NET_PLUGIN", "none") && !is(env, "NCCL_NET", "IB") &&
	       !is(env, "NCCL_NET", "Socket");
}

static bool uses_rendezvous_get(const struct inventory *first, const struct env *env)
{
	const char *network = env_get(env, "SLURM_NETWORK");

	return !network || !strstr(network, "disable_rdzv_get");
}

#define ON(kind) (1U << (kind))
#define ONE_NODE 1
#define SEVERAL_NODES 2
#define INCLUDE_LIST                                                                               \
	"berth cannot set the matching include list (the two exclude each other), so data uses "   \
	"every network that is not excluded; unset it"

/* The user reads "NAME=VALUE on FABRIC: REMARK". */
static const struct rule {
	const char *name;
	const char *value;  /* NULL: any; "!X": any but X; "~X": contains X, not after '^' */
	unsigned int kinds; /* of the first node's best NIC; 0: any */
	int nodes;	    /* 0: any number */
	bool (*when)(const struct inventory *first, const struct env *env);
	const char *remark;
} rules[] = {
	{"FI_PROVIDER", "efa", ON(NIC_SLINGSHOT), 0, NULL, "set FI_PROVIDER=cxi, or unset it"},
	{"FI_PROVIDER", "cxi", ON(NIC_EFA), 0, NULL, "the provider for this network is efa"},
	{"FI_MR_CACHE_MONITOR", "memhooks", ON(NIC_SLINGSHOT), 0, NULL,
	 "deadlocks with NCCL; use userfaultfd"},
	{"RDMAV_FORK_SAFE", NULL, ON(NIC_EFA), 0, NULL, "it must not be set with EFA"},
	{"NCCL_IB_DISABLE", "1", ON(NIC_INFINIBAND) | ON(NIC_ROCE), 0, NULL,
	 "NCCL will use TCP instead"},
	{"NCCL_NET", NULL, 0, 0, lacks_plugin,
	 "with NCCL_NET_PLUGIN=none, NCCL fails with 'invalid usage'"},
	{"NCCL_NET", "AWS Libfabric", 0, ONE_NODE, NULL,
	 "NCCL needs no network on one node, and the job may fail if it has no VNI; unset it"},
	{"MPICH_GPU_SUPPORT_ENABLED", "1", ON(NIC_SLINGSHOT), 0, has_gpus,
	 "both MPI and NCCL register GPU memory and may deadlock; set it to 0 if MPI transfers no "
	 "GPU buffers"},
	{"FI_CXI_RDZV_PROTO", "alt_read", ON(NIC_SLINGSHOT), 0, uses_rendezvous_get,
	 "needs a job step started with --network=disable_rdzv_get (PALS: --disable_rdzv_get)"},
	{"NCCL_PROTO", "~LL128", ON(NIC_SLINGSHOT), 0, fabric_has_gh200,
	 "LL128 gave silently wrong sums on GH200 (NVIDIA/nccl issue 2001); use ^LL128"},
	{"CUDA_DEVICE_ORDER", "!PCI_BUS_ID", 0, 0, NULL,
	 "GPU ordinals do not follow the plan's PCI order; unset it"},
	/* Values that must differ between jobs or nodes, but cannot if all have the same one. */
	{"NCCL_COMM_ID", NULL, 0, 0, NULL,
	 "all communicators of all jobs with this value share one rendezvous address, and NCCL "
	 "uses that address's network; unset it"},
	{"NCCL_HOSTID", NULL, 0, SEVERAL_NODES, NULL,
	 "it is the same on all nodes: NCCL believes that ranks of different nodes share one node, "
	 "and fails or hangs; unset it"},
	{"OMPI_MCA_btl_tcp_if_exclude", NULL, 0, SEVERAL_NODES, NULL, INCLUDE_LIST},
	{"OMPI_MCA_oob_tcp_if_exclude", NULL, 0, SEVERAL_NODES, NULL, INCLUDE_LIST},
	{"PRTE_MCA_prte_if_exclude", NULL, 0, SEVERAL_NODES, NULL, INCLUDE_LIST},
	/* Only berth knows these. */
	{"MASTER_ADDR", NULL, 0, 0, NULL,
	 "replaced by the address that all nodes can reach; use --master-addr to choose your own"},
	{"MASTER_PORT", NULL, 0, 0, NULL,
	 "replaced by a port that berth keeps reserved; use --port to choose your own"},
	/* berth composes AMD's lists, but a mask of tiles is the user's own. */
	{"ZE_FLAT_DEVICE_HIERARCHY", "!COMPOSITE", 0, 0, has_intel_gpus,
	 "it counts tiles, but berth plans whole GPUs, so it leaves ZE_AFFINITY_MASK as it is: "
	 "xpu:LOCAL_RANK may be another GPU than planned; unset it to get whole GPUs"},
};

static bool has_value(const char *value, const char *wanted)
{
	if (!value || !wanted)
		return value;
	if (*wanted == '~')
		return *value != '^' && strstr(value, wanted + 1);
	return *wanted == '!' ? strcmp(value, wanted + 1) != 0 : !strcmp(value, wanted);
}

static void lint_values(json_t *list, const struct env *env, const struct inventory *inventories,
			size_t count)
{
	enum nic_kind kind = NIC_ETHERNET;

	if (count)
		nic_best_class(&inventories[0], &kind);
	for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
		const struct rule *rule = &rules[i];
		const char *value = env_get(env, rule->name);

		if (has_value(value, rule->value) && (!rule->kinds || rule->kinds & ON(kind)) &&
		    (!rule->nodes || (rule->nodes == ONE_NODE ? count == 1 : count > 1)) &&
		    (!rule->when || (count && rule->when(&inventories[0], env))))
			add_remark(list, "%s=%.100s%s%s: %s", rule->name, value,
				   rule->kinds ? " on " : "", rule->kinds ? fabric_title(kind) : "",
				   rule->remark);
	}
}

/* A rank's place, left over from another launcher or a script. */
static void lint_rank_variables(json_t *list, const struct env *env)
{
	static const char *const names[] = {
		"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"};
	char set[256] = "";

	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const char *value = env_get(env, names[i]);

		if (value)
			text_append(set, sizeof set, "%s%s=%.20s", *set ? ", " : "", names[i],
				    value);
	}
	if (*set)
		add_remark(
			list,
			"%s: replaced by each rank's own values; if another launcher has already "
			"started this rank, use berth exec",
			set);
}

json_t *plan_lint(const struct env *env, const struct inventory *inventories, size_t count)
{
	json_t *list = json_array();

	if (!list)
		return NULL;
	lint_entries(list, env, "NCCL_SOCKET_IFNAME", true, INTERFACE, inventories, count);
	lint_entries(list, env, "GLOO_SOCKET_IFNAME", false, INTERFACE, inventories, count);
	lint_entries(list, env, "NCCL_IB_HCA", true, HCA, inventories, count);
	lint_entries(list, env, "UCX_NET_DEVICES", false, INTERFACE | HCA, inventories, count);
	if (count) {
		lint_prefix_match(list, env, "NCCL_SOCKET_IFNAME", INTERFACE, &inventories[0]);
		lint_prefix_match(list, env, "NCCL_IB_HCA", HCA, &inventories[0]);
		lint_management(list, env, &inventories[0]);
	}
	lint_values(list, env, inventories, count);
	lint_rank_variables(list, env);
	return list;
}
