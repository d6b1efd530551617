/* SPDX-License-Identifier: BSD-3-Clause */
/* Warnings about variables that do not do what the user meant. */
#include "plan/plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/json.h"
#include "base/spelling.h"
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

/* ---- misspelt names ---- */

/* Names that users often type by hand; near misses of them are reported. */
static const char *const known[] = {
	"NCCL_SOCKET_IFNAME",
	"NCCL_SOCKET_FAMILY",
	"NCCL_SOCKET_NTHREADS",
	"NCCL_NSOCKS_PERTHREAD",
	"NCCL_IB_HCA",
	"NCCL_IB_DISABLE",
	"NCCL_IB_GID_INDEX",
	"NCCL_IB_TIMEOUT",
	"NCCL_IB_SL",
	"NCCL_IB_TC",
	"NCCL_IB_RETRY_CNT",
	"NCCL_IB_CUDA_SUPPORT",
	"NCCL_IB_QPS_PER_CONNECTION",
	"NCCL_NET",
	"NCCL_NET_PLUGIN",
	"NCCL_NET_GDR_LEVEL",
	"NCCL_NET_GDR_READ",
	"NCCL_CROSS_NIC",
	"NCCL_DEBUG",
	"NCCL_DEBUG_SUBSYS",
	"NCCL_DEBUG_FILE",
	"NCCL_P2P_DISABLE",
	"NCCL_P2P_LEVEL",
	"NCCL_SHM_DISABLE",
	"NCCL_ALGO",
	"NCCL_PROTO",
	"NCCL_COMM_ID",
	"NCCL_TOPO_FILE",
	"NCCL_MIN_NCHANNELS",
	"NCCL_MAX_NCHANNELS",
	"NCCL_BUFFSIZE",
	"NCCL_NTHREADS",
	"NCCL_ASYNC_ERROR_HANDLING",
	"NCCL_BLOCKING_WAIT",
	"NCCL_TIMEOUT",
	"NCCL_HOSTID",
	"NCCL_NVLS_ENABLE",
	"NCCL_COLLNET_ENABLE",
	"NCCL_TUNER_PLUGIN",
	"NCCL_CONF_FILE",
	"GLOO_SOCKET_IFNAME",
	"TP_SOCKET_IFNAME",
	"CUDA_VISIBLE_DEVICES",
	"CUDA_DEVICE_ORDER",
	"OMP_NUM_THREADS",
	"UCX_NET_DEVICES",
	"FI_PROVIDER",
	"FI_TCP_IFACE",
	"FI_MR_CACHE_MONITOR",
};
#define KNOWN_COUNT (sizeof known / sizeof *known)

/* Libraries add variables faster than this list. So only a name that begins like a known one and is
 * within two edits of it counts as a typing error. */
static void lint_spelling(json_t *list, const struct env *env)
{
	for (size_t v = 0; v < env_count(env); v++) {
		const struct env_var *var = env_at(env, v);
		const char *meant = NULL;
		bool exact = false;

		if (!var->value)
			continue;
		for (size_t k = 0; k < KNOWN_COUNT && !exact; k++) {
			size_t stem = strcspn(known[k], "_") + 1;
			int distance;

			if (strncmp(var->name, known[k], stem))
				continue;
			distance = spelling_distance(var->name, known[k]);
			exact = distance == 0;
			/* Short names are naturally close to each other (NCCL_IB_SL, NCCL_IB_TC).
			 */
			if (distance <= 2 && strlen(known[k]) >= 14)
				meant = known[k];
		}
		if (meant && !exact)
			add_remark(list, "no library reads the variable %s; did you mean %s?",
				   var->name, meant);
	}
}

/* ---- interfaces and devices that do not exist ---- */

static bool starts_with(const char *name, const char *prefix, size_t length)
{
	return !strncmp(name, prefix, length);
}

static bool has_iface(const struct inventory *inventory, const char *name, size_t length,
		      bool prefix)
{
	for (size_t i = 0; i < inventory->address_count; i++)
		if (starts_with(inventory->addresses[i].iface, name, length) &&
		    (prefix || strlen(inventory->addresses[i].iface) == length))
			return true;
	for (size_t n = 0; n < inventory->nic_count; n++)
		if (starts_with(inventory->nics[n].net, name, length) &&
		    (prefix || strlen(inventory->nics[n].net) == length))
			return true;
	return false;
}

static bool has_hca(const struct inventory *inventory, const char *name, size_t length, bool prefix)
{
	for (size_t n = 0; n < inventory->nic_count; n++)
		if (starts_with(inventory->nics[n].rdma, name, length) &&
		    (prefix || strlen(inventory->nics[n].rdma) == length))
			return true;
	return false;
}

typedef bool (*has_device)(const struct inventory *inventory, const char *name, size_t length,
			   bool prefix);

/* Each entry of a list must exist on every node that reports its devices. */
static void lint_entries(json_t *list, const struct env *env, const char *name, bool prefix,
			 const char *what, has_device has, const struct inventory *inventories,
			 size_t count)
{
	const char *value = env_get(env, name), *entry = value;

	if (!value || *value == '^')
		return;
	if (*entry == '=') {
		prefix = false;
		entry++;
	}
	while (*entry) {
		size_t length = strcspn(entry, ","), full = strcspn(entry, ",:"), without = 0;
		const char *first = NULL;

		for (size_t n = 0; n < count && length; n++)
			/* A capture may lack the network, which says nothing about its devices. */
			if ((inventories[n].address_count || inventories[n].nic_count) &&
			    !has(&inventories[n], entry, full < length ? full : length, prefix) &&
			    !without++)
				first = inventories[n].node;
		if (without == count && count)
			add_remark(list, "%s names the %s %.*s, which no node has", name, what,
				   (int)length, entry);
		else if (without)
			add_remark(list,
				   "%s names the %s %.*s, which %zu of %zu nodes lack (first: %s)",
				   name, what, (int)length, entry, without, count,
				   first ? first : "?");
		entry += length;
		entry += *entry == ',';
	}
}

/* NCCL matches prefixes: a complete name in the list may also be the prefix of another. */
static void lint_prefix_match(json_t *list, const struct env *env, const char *name, bool hca,
			      const struct inventory *inventory)
{
	const char *value = env_get(env, name), *entry = value;
	size_t count = hca ? inventory->nic_count : inventory->address_count;

	if (!value || *value == '^' || *value == '=')
		return;
	for (; *entry; entry += strcspn(entry, ","), entry += *entry == ',') {
		size_t length = strcspn(entry, ",:");

		if (!(hca ? has_hca : has_iface)(inventory, entry, length, false))
			continue;
		for (size_t i = 0; i < count; i++) {
			const char *other =
				hca ? inventory->nics[i].rdma : inventory->addresses[i].iface;

			if (strlen(other) <= length || !starts_with(other, entry, length))
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
	const char *value = env_get(env, "NCCL_IB_HCA");
	bool exact = value && *value == '=';

	if (!value || *value == '^')
		return;
	for (size_t n = 0; n < inventory->nic_count; n++) {
		const struct inventory_nic *nic = &inventory->nics[n];

		if (!nic->management || !*nic->rdma)
			continue;
		for (const char *entry = value + exact; *entry;
		     entry += strcspn(entry, ","), entry += *entry == ',') {
			size_t length = strcspn(entry, ",:");

			if (!starts_with(nic->rdma, entry, length) ||
			    (exact && strlen(nic->rdma) != length))
				continue;
			add_remark(list,
				   "NCCL_IB_HCA=%s includes %s, a management NIC: NCCL hangs or is "
				   "slow "
				   "if it connects over that NIC",
				   value, nic->rdma);
			return;
		}
	}
}

/* NCCL reads these characters as "not" and "exactly"; other libraries take them as part of the
 * name. */
static void lint_nccl_syntax(json_t *list, const struct env *env, const char *name)
{
	const char *value = env_get(env, name);

	if (value && (*value == '^' || *value == '='))
		add_remark(list,
			   "%s=%s: only NCCL understands '%c'; in this variable it counts as part "
			   "of the "
			   "name",
			   name, value, *value);
}

/* "mlx5_0:1,eth0", "all". */
static void lint_ucx(json_t *list, const struct env *env, const struct inventory *inventories,
		     size_t count)
{
	const char *value = env_get(env, "UCX_NET_DEVICES");

	if (!value || !strcmp(value, "all") || strchr(value, '^') || strchr(value, '*'))
		return;
	for (const char *entry = value; *entry;
	     entry += strcspn(entry, ","), entry += *entry == ',') {
		size_t length = strcspn(entry, ","), name = strcspn(entry, ",:");
		bool found = false;

		for (size_t n = 0; n < count; n++)
			found |= (!inventories[n].address_count && !inventories[n].nic_count) ||
				 has_iface(&inventories[n], entry, name, false) ||
				 has_hca(&inventories[n], entry, name, false);
		if (!found && length)
			add_remark(list, "UCX_NET_DEVICES names the device %.*s, which no node has",
				   (int)length, entry);
	}
}

/* An exclusion replaces NCCL's own list (docker, lo, virbr) instead of adding to it. */
static void lint_exclusion(json_t *list, const struct env *env)
{
	const char *value = env_get(env, "NCCL_SOCKET_IFNAME");
	bool lo = false;

	if (!value || *value != '^')
		return;
	for (const char *entry = value + 1; *entry; entry += strcspn(entry, ","), entry += !!*entry)
		lo |= entry[strspn(entry, "=")] == 'l' &&
		      !strncmp(entry + strspn(entry, "="), "lo", 2);
	if (!lo)
		add_remark(list,
			   "NCCL_SOCKET_IFNAME=%s replaces NCCL's own exclusions, so NCCL may now "
			   "choose "
			   "lo; write %s,lo,docker",
			   value, value);
}

/* ---- contradictions ---- */

static void lint_fabric(json_t *list, const struct env *env, const struct inventory *inventories,
			size_t count)
{
	enum nic_kind kind = NIC_ETHERNET;

	if (count)
		nic_best_class(&inventories[0], &kind);
	if (kind == NIC_SLINGSHOT && is(env, "FI_PROVIDER", "efa"))
		add_remark(list, "FI_PROVIDER=efa on Slingshot: set FI_PROVIDER=cxi, or unset it");
	if (kind == NIC_EFA && is(env, "FI_PROVIDER", "cxi"))
		add_remark(list, "FI_PROVIDER=cxi on EFA: the provider for this network is efa");
	if (kind == NIC_SLINGSHOT && is(env, "FI_MR_CACHE_MONITOR", "memhooks"))
		add_remark(list,
			   "FI_MR_CACHE_MONITOR=memhooks deadlocks with NCCL on Slingshot; use "
			   "userfaultfd");
	if (kind == NIC_EFA && env_get(env, "RDMAV_FORK_SAFE"))
		add_remark(list, "RDMAV_FORK_SAFE must not be set with EFA");
	if ((kind == NIC_INFINIBAND || kind == NIC_ROCE) && is(env, "NCCL_IB_DISABLE", "1"))
		add_remark(list, "NCCL_IB_DISABLE=1 on %s: NCCL will use TCP instead",
			   fabric_title(kind));
	if (env_get(env, "NCCL_NET") && is(env, "NCCL_NET_PLUGIN", "none") &&
	    !is(env, "NCCL_NET", "IB") && !is(env, "NCCL_NET", "Socket"))
		add_remark(list,
			   "NCCL_NET=%s with NCCL_NET_PLUGIN=none: NCCL fails with 'invalid usage'",
			   env_get(env, "NCCL_NET"));
	if (kind == NIC_SLINGSHOT && inventories[0].gpu_count &&
	    is(env, "MPICH_GPU_SUPPORT_ENABLED", "1"))
		add_remark(list,
			   "MPICH_GPU_SUPPORT_ENABLED=1 with NCCL on Slingshot: both register GPU "
			   "memory and may deadlock; set it to 0 if MPI transfers no GPU buffers");
	if (kind == NIC_SLINGSHOT && is(env, "FI_CXI_RDZV_PROTO", "alt_read") &&
	    !(env_get(env, "SLURM_NETWORK") &&
	      strstr(env_get(env, "SLURM_NETWORK"), "disable_rdzv_get")))
		add_remark(list, "FI_CXI_RDZV_PROTO=alt_read needs a job step started with "
				 "--network=disable_rdzv_get (PALS: --disable_rdzv_get)");
	if (kind == NIC_SLINGSHOT && fabric_has_gh200(&inventories[0], env) &&
	    env_get(env, "NCCL_PROTO") && *env_get(env, "NCCL_PROTO") != '^' &&
	    strstr(env_get(env, "NCCL_PROTO"), "LL128"))
		add_remark(list,
			   "NCCL_PROTO=%s: LL128 gave silently wrong sums on GH200 over Slingshot "
			   "(NVIDIA/nccl issue 2001); use ^LL128",
			   env_get(env, "NCCL_PROTO"));
	if (count == 1 && is(env, "NCCL_NET", "AWS Libfabric"))
		add_remark(list,
			   "NCCL_NET=AWS Libfabric on one node: NCCL needs no network there, and "
			   "the job may fail if it has no VNI; unset it");
	if (env_get(env, "CUDA_DEVICE_ORDER") && !is(env, "CUDA_DEVICE_ORDER", "PCI_BUS_ID"))
		add_remark(list,
			   "CUDA_DEVICE_ORDER=%s: GPU ordinals do not follow the plan's PCI order; "
			   "unset "
			   "it",
			   env_get(env, "CUDA_DEVICE_ORDER"));
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

/* Values that must differ between jobs or nodes, but cannot if all have the same environment. */
static void lint_fixed(json_t *list, const struct env *env, size_t count)
{
	if (env_get(env, "NCCL_COMM_ID"))
		add_remark(
			list,
			"NCCL_COMM_ID=%s: all communicators of all jobs with this value share one "
			"rendezvous address, and NCCL uses that address's network; unset it",
			env_get(env, "NCCL_COMM_ID"));
	if (env_get(env, "NCCL_HOSTID") && count > 1)
		add_remark(list,
			   "NCCL_HOSTID=%s is the same on all nodes: NCCL believes that ranks of "
			   "different nodes share one node, and fails or hangs; unset it",
			   env_get(env, "NCCL_HOSTID"));
}

/* Open MPI and its relatives accept one list or the other. */
static void lint_exclude(json_t *list, const struct env *env, size_t count)
{
	static const char *const names[] = {"OMPI_MCA_btl_tcp_if_exclude",
					    "OMPI_MCA_oob_tcp_if_exclude",
					    "PRTE_MCA_prte_if_exclude"};

	for (size_t i = 0; count > 1 && i < sizeof names / sizeof *names; i++)
		if (env_get(env, names[i]))
			add_remark(list,
				   "%s=%s prevents berth from setting the matching include list "
				   "(the two "
				   "exclude each other), so data uses every network that is not "
				   "excluded; "
				   "unset it",
				   names[i], env_get(env, names[i]));
}

/* Variables that the user set before berth although only berth knows their value. */
static void lint_identity(json_t *list, const struct env *env)
{
	if (env_get(env, "MASTER_ADDR"))
		add_remark(
			list,
			"MASTER_ADDR=%s is replaced by the address that all nodes can reach; use "
			"--master-addr to choose your own",
			env_get(env, "MASTER_ADDR"));
	if (env_get(env, "MASTER_PORT"))
		add_remark(list,
			   "MASTER_PORT=%s is replaced by a port that berth keeps reserved; use "
			   "--port to "
			   "choose your own",
			   env_get(env, "MASTER_PORT"));
	lint_rank_variables(list, env);
}

/* OpenMP's format: one number per nesting level. */
static bool is_thread_list(const char *text)
{
	for (;;) {
		text += strspn(text, " \t");

		size_t digits = strspn(text, "0123456789");

		if (!digits || digits > 9 || strspn(text, "0") == digits)
			return false;
		text += digits;
		text += strspn(text, " \t");
		if (!*text)
			return true;
		if (*text++ != ',')
			return false;
	}
}

static void lint_threads(json_t *list, const struct env *env)
{
	const char *value = env_get(env, "OMP_NUM_THREADS");

	if (value && !is_thread_list(value))
		add_remark(
			list,
			"OMP_NUM_THREADS=%.100s is not a number of threads (1 or more), so OpenMP "
			"ignores it; unset it to give each rank as many threads as cores",
			value);
}

/* berth composes AMD's lists, but a mask of tiles is the user's own. */
static void lint_visible(json_t *list, const struct env *env, const struct inventory *inventories,
			 size_t count)
{
	const char *hierarchy = env_get(env, "ZE_FLAT_DEVICE_HIERARCHY");
	bool intel = false;

	for (size_t g = 0; count && g < inventories[0].gpu_count; g++)
		intel |= inventories[0].gpus[g].vendor == 0x8086;
	if (intel && hierarchy && strcmp(hierarchy, "COMPOSITE") != 0)
		add_remark(
			list,
			"ZE_FLAT_DEVICE_HIERARCHY=%.40s counts tiles, but berth plans whole GPUs, "
			"so "
			"it "
			"leaves ZE_AFFINITY_MASK as it is: xpu:LOCAL_RANK may be another GPU than "
			"planned; "
			"unset it to get whole GPUs",
			hierarchy);
}

json_t *plan_lint(const struct env *env, const struct inventory *inventories, size_t count)
{
	json_t *list = json_array();

	if (!list)
		return NULL;
	lint_spelling(list, env);
	lint_entries(list, env, "NCCL_SOCKET_IFNAME", true, "interface", has_iface, inventories,
		     count);
	lint_entries(list, env, "GLOO_SOCKET_IFNAME", false, "interface", has_iface, inventories,
		     count);
	lint_entries(list, env, "TP_SOCKET_IFNAME", false, "interface", has_iface, inventories,
		     count);
	lint_entries(list, env, "FI_TCP_IFACE", false, "interface", has_iface, inventories, count);
	lint_entries(list, env, "NCCL_IB_HCA", true, "HCA", has_hca, inventories, count);
	if (count) {
		lint_prefix_match(list, env, "NCCL_SOCKET_IFNAME", false, &inventories[0]);
		lint_prefix_match(list, env, "NCCL_IB_HCA", true, &inventories[0]);
		lint_management(list, env, &inventories[0]);
	}
	lint_nccl_syntax(list, env, "GLOO_SOCKET_IFNAME");
	lint_nccl_syntax(list, env, "TP_SOCKET_IFNAME");
	lint_nccl_syntax(list, env, "FI_TCP_IFACE");
	lint_ucx(list, env, inventories, count);
	lint_exclusion(list, env);
	lint_exclude(list, env, count);
	lint_fixed(list, env, count);
	lint_fabric(list, env, inventories, count);
	lint_identity(list, env);
	lint_threads(list, env);
	lint_visible(list, env, inventories, count);
	return list;
}
