/* SPDX-License-Identifier: BSD-3-Clause */
/* The environment of one rank, each variable with where it comes from and why. */
#include "plan/plan.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/parts.h"

/* What is being made: the inputs, and the changes so far. rc keeps the first failure, so that
 * the sections below read as lists. */
struct making {
	const struct plan *plan;
	const struct plan_node *node;
	const struct plan_rank *rank;
	const struct machine *card;
	const struct plan_request *request;
	const struct env *env;
	size_t node_index;
	struct env *out;
	struct error *err;
	int rc;
};

/* ---- who wins ---- */

static bool under_pbs(const struct env *env)
{
	return env_get(env, "PBS_JOBID") != NULL;
}

static bool under_scheduler(const struct env *env)
{
	return under_pbs(env) || env_get(env, "SLURM_JOB_ID") || env_get(env, "SLURM_JOBID") ||
	       env_get(env, "PAI_TASK_ROLE_LIST");
}

static bool is_device_list(const char *name)
{
	static const char *const names[] = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
					    "GPU_DEVICE_ORDINAL",   "ROCR_VISIBLE_DEVICES",
					    "HIP_VISIBLE_DEVICES",  "ZE_AFFINITY_MASK"};

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!strcmp(names[i], name))
			return true;
	return false;
}

/* Variables that a scheduler sets on its own and that reach us unmarked: its device lists, and
 * PBS's OMP_NUM_THREADS, which is the NCPUS of the first chunk whatever the number of ranks. */
static enum env_from provenance(const struct env *env, const struct env_var *var)
{
	const char *ncpus = env_get(env, "NCPUS");

	if (var->from != ENV_FROM_USER)
		return var->from;
	if (is_device_list(var->name) && under_scheduler(env))
		return ENV_FROM_SCHEDULER;
	if (!strcmp(var->name, "OMP_NUM_THREADS") && under_pbs(env) && ncpus &&
	    !strcmp(ncpus, var->value))
		return ENV_FROM_SCHEDULER;
	return ENV_FROM_USER;
}

/* Set for certain: what only berth can know. */
static void force(struct making *m, const char *name, const char *value, const char *why)
{
	if (!m->rc)
		m->rc = env_set(m->out, name, value, ENV_FROM_BERTH, why, m->err);
}

static void force_int(struct making *m, const char *name, long value, const char *why)
{
	char text[24];

	snprintf(text, sizeof text, "%ld", value);
	force(m, name, text, why);
}

/* Set unless the user, or a site, has: theirs stays and is listed with what berth would do. */
static void put_from(struct making *m, enum env_from from, const char *name, const char *value,
		     const char *why)
{
	const struct env_var *var = env_find(m->env, name);
	char text[512];

	if (m->rc)
		return;
	if (!var || !var->value || provenance(m->env, var) == ENV_FROM_SCHEDULER ||
	    from < provenance(m->env, var)) {
		m->rc = env_set(m->out, name, value, from, why, m->err);
		return;
	}
	if (!strcmp(var->value, value))
		snprintf(text, sizeof text, "set already, as berth would: %s", why);
	else
		snprintf(text, sizeof text, "set already, so it stays; berth would set %s: %s",
			 value, why);
	m->rc = env_set(m->out, name, var->value, provenance(m->env, var), text, m->err);
}

static void put(struct making *m, const char *name, const char *value, const char *why)
{
	put_from(m, ENV_FROM_BERTH, name, value, why);
}

static void put_int(struct making *m, const char *name, long value, const char *why)
{
	char text[24];

	snprintf(text, sizeof text, "%ld", value);
	put(m, name, text, why);
}

/* A scheduler's variable that the plan has taken the place of. */
static void drop(struct making *m, const char *name, const char *why)
{
	const struct env_var *var = env_find(m->env, name);

	if (m->rc || !var || !var->value || provenance(m->env, var) != ENV_FROM_SCHEDULER)
		return;
	m->rc = env_set(m->out, name, NULL, ENV_FROM_BERTH, why, m->err);
}

/* ---- the sections ---- */

static void add_identity(struct making *m)
{
	const char *head = m->plan->network.why ? m->plan->network.why : "the head's address";

	force_int(m, "RANK", m->rank->rank, "this rank, nodes in order");
	force_int(m, "WORLD_SIZE", m->plan->world_size, "ranks of the job");
	force_int(m, "LOCAL_RANK", m->rank->local_rank, "this rank on its node");
	force_int(m, "LOCAL_WORLD_SIZE", (long)m->node->rank_count, "ranks of this node");
	force_int(m, "NODE_RANK", (long)m->node_index, "this node, in the scheduler's order");
	force_int(m, "GROUP_RANK", (long)m->node_index, "torchrun's name for NODE_RANK");
	force(m, "MASTER_ADDR", m->plan->network.address, head);
	if (m->plan->port)
		force_int(m, "MASTER_PORT", m->plan->port,
			  "held by rank 0's agent while rank 0 runs");
}

/* Only where each rank sees its own GPUs; else the list is the node's. */
static void own_devices(struct making *m, char *text, size_t size)
{
	size_t used = 0;

	*text = '\0';
	for (size_t i = 0; i < m->rank->gpu_count && used < size; i++) {
		int index = m->rank->gpus[i].index;
		char token[96];

		if (index < 0 || (size_t)index >= m->card->gpu_count ||
		    !gpu_is_cuda(&m->card->gpus[index]))
			continue;
		gpu_token(m->card, (size_t)index, token, sizeof token);
		used += (size_t)snprintf(text + used, size - used, "%s%s", used ? "," : "", token);
	}
}

/* The user's list bounds the GPUs that the plan deals out; among them the order is the plan's. */
static void add_devices(struct making *m)
{
	const struct env_var *given = env_find(m->env, "CUDA_VISIBLE_DEVICES");
	const char *list = m->node->visible_devices;
	char own[4096], why[512];

	if (!list) {
		own_devices(m, own, sizeof own);
		list = own;
		snprintf(why, sizeof why, "this rank's own GPUs");
	} else {
		snprintf(why, sizeof why,
			 "the node's GPUs in local-rank order: cuda:LOCAL_RANK is "
			 "this rank's");
	}
	if (!*list) {
		/* The head's list says nothing about a node without NVIDIA GPUs. */
		if (m->node_index)
			drop(m, "CUDA_VISIBLE_DEVICES", "the head's list is not this node's");
		return;
	}
	if (given && given->value && strcmp(given->value, list)) {
		size_t used = strlen(why);

		snprintf(why + used, sizeof why - used, " (from the list %.200s)", given->value);
	}
	force(m, "CUDA_VISIBLE_DEVICES", list, why);
	put(m, "CUDA_DEVICE_ORDER", "PCI_BUS_ID", "so that ordinals mean the plan's PCI order");
	drop(m, "GPU_DEVICE_ORDINAL", "CUDA_VISIBLE_DEVICES takes its place");
}

static int workers(const struct making *m)
{
	int per_rank = m->request->gpus_per_rank > 1 ? m->request->gpus_per_rank : 1;

	if (!m->request->per_node)
		return 1;
	if (m->request->ranks_per_node)
		return m->request->ranks_per_node;
	if (m->request->ranks)
		return m->request->ranks / (int)m->plan->node_count;
	return m->rank->gpu_count ? (int)m->rank->gpu_count / per_rank : 1;
}

static void add_threads(struct making *m)
{
	int count = workers(m), threads = m->rank->threads / (count > 0 ? count : 1);

	put_int(m, "OMP_NUM_THREADS", threads > 0 ? threads : 1,
		count > 1 ? "cores of each worker of this process" : "cores of this rank");
}

static bool one_node(const struct making *m)
{
	return m->plan->network.single_node;
}

/* Would NCCL take this interface, and no other, by itself? Its own search (socket.cc,
 * ncclFindInterfaces): names that begin with ib; else all but docker* and lo*. Versions differ on
 * virbr* and on interfaces that are down: with one of those about, the answer is no. */
static bool nccl_picks_it(const struct machine *card, const char *iface)
{
	bool some_ib = false, found = false;

	for (size_t i = 0; i < card->address_count; i++)
		some_ib |= !strncmp(card->addresses[i].iface, "ib", 2);
	for (size_t i = 0; i < card->address_count; i++) {
		const char *name = card->addresses[i].iface;

		if (some_ib ? strncmp(name, "ib", 2)
			    : !strncmp(name, "docker", 6) || !strncmp(name, "lo", 2))
			continue;
		if (strcmp(name, iface))
			return false;
		found = true;
	}
	return found;
}

/* NCCL reads prefixes: "=" makes a name exact, needed where it is another one's beginning. */
static void nccl_iface(const struct machine *card, const char *iface, char *text, size_t size)
{
	bool prefix = false;

	for (size_t i = 0; i < card->address_count; i++)
		prefix |= !strncmp(card->addresses[i].iface, iface, strlen(iface)) &&
			  strcmp(card->addresses[i].iface, iface);
	snprintf(text, size, "%s%s", prefix ? "=" : "", iface);
}

/* "mlx5_0:1,mlx5_3:1" of the fabric's usable ports, or "" where NCCL's own search, which takes
 * every active RDMA port, finds the same. */
static void nccl_hcas(const struct machine *card, char *text, size_t size)
{
	bool others = false;
	size_t used = 0;

	*text = '\0';
	for (size_t n = 0; n < card->nic_count; n++) {
		const struct machine_nic *nic = &card->nics[n];

		if (!*nic->rdma || nic->state == STATE_DOWN)
			continue;
		if (nic_class(card, n) == NIC_CLASS_NONE) {
			others = true;
			continue;
		}
		if (used < size)
			used += (size_t)snprintf(text + used, size - used, "%s%s:%d",
						 used ? "," : "=", nic->rdma, nic->port);
	}
	if (!others || used >= size)
		*text = '\0';
}

/* Libraries that take an address range rather than a name; Open MPI reads IPv4 ranges only. */
static const char *range_or_name(const struct making *m)
{
	int index;

	if (strchr(m->plan->network.subnet, ':') ||
	    !network_iface(m->card, &m->plan->network, &index))
		return m->node->iface;
	return m->plan->network.subnet;
}

static void ucx_devices(const struct making *m, char *text, size_t size)
{
	size_t used = 0;

	*text = '\0';
	for (size_t n = 0; n < m->rank->nic_count; n++) {
		const struct plan_nic *nic = &m->rank->nics[n];

		if (nic->state == STATE_DOWN || !*nic->rdma || used >= size ||
		    (nic->kind != NIC_INFINIBAND && nic->kind != NIC_ROCE))
			continue;
		used += (size_t)snprintf(text + used, size - used, "%s%s:%d", used ? "," : "",
					 nic->rdma, nic->port);
	}
	if (!used || used >= size)
		snprintf(text, size, "%s", m->node->iface);
}

static void add_interfaces(struct making *m)
{
	enum env_from from = m->request->iface || m->request->subnet || m->request->head
				     ? ENV_FROM_OPTION
				     : ENV_FROM_BERTH;
	const char *iface = m->node->iface, *range;
	char why[128], text[2048];

	if (one_node(m) || !*iface)
		return;
	range = range_or_name(m);
	snprintf(why, sizeof why, "this node's interface to %s",
		 *m->plan->network.subnet ? m->plan->network.subnet : m->plan->network.address);
	nccl_iface(m->card, iface, text, sizeof text);
	if (env_get(m->env, "NCCL_SOCKET_IFNAME") || !nccl_picks_it(m->card, iface))
		put_from(m, from, "NCCL_SOCKET_IFNAME", text, why);
	put_from(m, from, "GLOO_SOCKET_IFNAME", iface, why);
	put_from(m, from, "TP_SOCKET_IFNAME", iface, why);
	put_from(m, from, "FI_TCP_IFACE", iface, why);
	ucx_devices(m, text, sizeof text);
	put(m, "UCX_NET_DEVICES", text,
	    !strcmp(text, iface) ? why : "the NICs nearest to this rank's GPU");
	snprintf(why, sizeof why, "Open MPI spreads over every network it sees unless told");
	put_from(m, from, "OMPI_MCA_btl_tcp_if_include", range, why);
	put_from(m, from, "OMPI_MCA_oob_tcp_if_include", range, why);
	put_from(m, from, "PRTE_MCA_prte_if_include", range, why);
	put_from(m, from, "PMIX_MCA_ptl_base_if_include", range, why);
}

/* The number that Cray MPICH gives a Slingshot NIC: its place by name. -1: the rank has none. */
static int cray_nic(const struct machine *card, const struct plan_rank *rank)
{
	const struct plan_nic *mine = NULL;
	int place = 0;

	for (size_t n = 0; n < rank->nic_count && !mine; n++)
		if (rank->nics[n].state != STATE_DOWN && rank->nics[n].kind == NIC_SLINGSHOT)
			mine = &rank->nics[n];
	for (size_t n = 0; mine && n < card->nic_count; n++) {
		const struct machine_nic *nic = &card->nics[n];

		if (nic->kind != NIC_SLINGSHOT)
			continue;
		place += *mine->rdma ? strverscmp(nic->rdma, mine->rdma) < 0
				     : strverscmp(nic->net, mine->net) < 0;
	}
	return mine ? place : -1;
}

/* "0:0,1;1:2,3": NIC, then the local ranks that use it. Equal for all ranks of the node. */
static void add_cray_nics(struct making *m)
{
	int nic_count = 0;
	size_t used = 0;
	char text[8192] = "";

	for (size_t n = 0; n < m->card->nic_count; n++)
		nic_count += m->card->nics[n].kind == NIC_SLINGSHOT;
	if (nic_count < 2)
		return;
	for (int nic = 0; nic < nic_count; nic++) {
		bool first = true;

		for (size_t r = 0; r < m->node->rank_count && used < sizeof text; r++) {
			int its = cray_nic(m->card, &m->node->ranks[r]);

			if (its < 0)
				return;
			if (its != nic)
				continue;
			if (first)
				used += (size_t)snprintf(text + used, sizeof text - used,
							 "%s%d:%zu", used ? ";" : "", nic, r);
			else
				used += (size_t)snprintf(text + used, sizeof text - used, ",%zu",
							 r);
			first = false;
		}
	}
	if (used >= sizeof text)
		return;
	put(m, "MPICH_OFI_NIC_POLICY", "USER", "the NICs of the plan, by MPICH_OFI_NIC_MAPPING");
	put(m, "MPICH_OFI_NIC_MAPPING", text, "NIC: the local ranks whose GPUs it is nearest to");
}

static void add_fabric(struct making *m)
{
	enum nic_kind kind;
	char hcas[2048], why[512];

	if (one_node(m) || !nic_best_class(m->card, &kind))
		return;
	if (kind == NIC_INFINIBAND || kind == NIC_ROCE) {
		nccl_hcas(m->card, hcas, sizeof hcas);
		if (*hcas)
			put(m, "NCCL_IB_HCA", hcas,
			    "the fabric's ports without the management NICs");
	}
	if (kind == NIC_SLINGSHOT)
		add_cray_nics(m);
	for (const struct fabric_setting *s = fabric_settings; s->name; s++) {
		if (s->kind != kind || (s->when && !s->when(m->card, m->env)))
			continue;
		snprintf(why, sizeof why, "%s: %s (%s)", fabric_title(kind), s->why, s->source);
		put(m, s->name, s->value, why);
	}
}

/* "10.0.0.1:29500", "[fd00::1]:29500". */
static void endpoint(const struct plan *plan, char *text, size_t size)
{
	bool v6 = strchr(plan->network.address, ':') != NULL;

	snprintf(text, size, "%s%s%s:%d", v6 ? "[" : "", plan->network.address, v6 ? "]" : "",
		 plan->port);
}

static void add_jax(struct making *m)
{
	char text[96];

	if (m->plan->port) {
		endpoint(m->plan, text, sizeof text);
		put(m, "JAX_COORDINATOR_ADDRESS", text, "rank 0's address for jax.distributed");
	}
	force_int(m, "JAX_NUM_PROCESSES", m->plan->world_size,
		  "give it to jax.distributed.initialize as num_processes");
	force_int(m, "JAX_PROCESS_ID", m->rank->rank,
		  "give it to jax.distributed.initialize as process_id");
}

static void add_berth(struct making *m)
{
	const struct plan_request *request = m->request;

	force(m, "BERTH_JOB_ID", m->plan->job_id, "the job");
	force_int(m, "BERTH_NODE_RANK", (long)m->node_index, "this node, in the scheduler's order");
	force_int(m, "BERTH_ATTEMPT", m->plan->attempt, "attempts before this one");
	if (m->plan->end_time > 0)
		force_int(m, "BERTH_END_TIME", (long)m->plan->end_time,
			  "when the scheduler ends the job, Unix seconds");
	if (request->plan_file)
		force(m, "BERTH_PLAN_FILE", request->plan_file,
		      "this node's part of the plan as JSON");
	if (request->stop_file)
		force(m, "BERTH_STOP_FILE", request->stop_file,
		      "once it exists: save a checkpoint and end with code 75");
	if (request->report)
		force(m, "BERTH_REPORT", request->report, "where the program may say how it ended");
}

static void local_address(const struct making *m, char *text, size_t size)
{
	int index;

	snprintf(text, size, "%s", m->plan->network.address);
	if (one_node(m))
		return;
	network_iface(m->card, &m->plan->network, &index);
	if (index >= 0)
		network_format(&m->card->addresses[index], text, size);
}

static void add_c10d(struct making *m)
{
	char text[96];

	endpoint(m->plan, text, sizeof text);
	put(m, "PET_RDZV_ENDPOINT", text, "the head's address for torchrun's c10d store");
	put(m, "PET_RDZV_ID", m->plan->job_id, "the job");
	put(m, "PET_RDZV_CONF", m->node_index ? "is_host=false" : "is_host=true",
	    "torchrun compares host names, which fails on a second NIC");
	local_address(m, text, sizeof text);
	put(m, "PET_LOCAL_ADDR", text, "workers take MASTER_ADDR from it, not from the host name");
}

/* torchrun's options as variables. A user's PET_RDZV_BACKEND=c10d is served too. */
static void add_torchrun(struct making *m)
{
	const char *backend = env_get(m->env, "PET_RDZV_BACKEND");

	if (!m->request->per_node)
		return;
	force_int(m, "PET_NNODES", (long)m->plan->node_count, "nodes of the job");
	put_int(m, "PET_NPROC_PER_NODE", workers(m), "workers of this process");
	force_int(m, "PET_NODE_RANK", (long)m->node_index, "this node, in the scheduler's order");
	force(m, "PET_MASTER_ADDR", m->plan->network.address, "the head's address");
	if (m->plan->port)
		force_int(m, "PET_MASTER_PORT", m->plan->port,
			  "held by rank 0's agent while rank 0 runs");
	if (backend && !strcmp(backend, "c10d") && m->plan->port)
		add_c10d(m);
}

int plan_environment(const struct plan *plan, const struct machine *card, size_t node_index,
		     size_t local_rank, const struct plan_request *request, const struct env *env,
		     struct env **out, struct error *err)
{
	struct making m = {.plan = plan,
			   .card = card,
			   .request = request,
			   .env = env,
			   .node_index = node_index,
			   .err = err};

	if (node_index >= plan->node_count || local_rank >= plan->nodes[node_index].rank_count)
		return error_set(err, ERR_INTERNAL, "the plan has no local rank %zu on node %zu",
				 local_rank, node_index);
	m.node = &plan->nodes[node_index];
	m.rank = &m.node->ranks[local_rank];
	m.out = env_new();
	if (!m.out)
		return error_memory(err, "a rank's environment");
	add_identity(&m);
	add_devices(&m);
	add_threads(&m);
	add_interfaces(&m);
	add_fabric(&m);
	add_jax(&m);
	add_berth(&m);
	add_torchrun(&m);
	if (m.rc) {
		env_free(m.out);
		return m.rc;
	}
	*out = m.out;
	return 0;
}
