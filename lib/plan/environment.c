/* SPDX-License-Identifier: BSD-3-Clause */
/* The environment of one rank. Each variable has its provenance and a reason. */
#include "plan/plan.h"

#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "plan/environment.h"
#include "plan/plan_internal.h"

/* ---- precedence ---- */

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

/* The provenance of a variable. Some variables come from the scheduler but arrive unmarked: its
 * device lists, and PBS's OMP_NUM_THREADS. The latter is the first chunk's NCPUS whatever the
 * number of ranks. */
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

/* Set unconditionally: values that only berth can know. */
static void set_always(struct environment_builder *m, const char *name, const char *value,
		       const char *why)
{
	if (!m->rc)
		m->rc = env_set(m->out, name, value, ENV_FROM_BERTH, why, m->err);
}

/* Found out at the start. */
static void set_later(struct environment_builder *m, const char *name, const char *why)
{
	if (!m->rc && !m->request->dir)
		m->rc = env_set(m->out, name, NULL, ENV_FROM_START, why, m->err);
}

static void set_always_int(struct environment_builder *m, const char *name, long value,
			   const char *why)
{
	char text[24];

	snprintf(text, sizeof text, "%ld", value);
	set_always(m, name, text, why);
}

void environment_put_from(struct environment_builder *m, enum env_from from, const char *name,
			  const char *value, const char *why)
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
		snprintf(text, sizeof text, "already set to the same value: %s", why);
	else
		snprintf(text, sizeof text, "already set, so unchanged; berth would set %s: %s",
			 value, why);
	m->rc = env_set(m->out, name, var->value, provenance(m->env, var), text, m->err);
}

void environment_put(struct environment_builder *m, const char *name, const char *value,
		     const char *why)
{
	environment_put_from(m, ENV_FROM_BERTH, name, value, why);
}

static void put_int(struct environment_builder *m, const char *name, long value, const char *why)
{
	char text[24];

	snprintf(text, sizeof text, "%ld", value);
	environment_put(m, name, text, why);
}

/* Remove a scheduler's variable that the plan replaces. */
static void drop(struct environment_builder *m, const char *name, const char *why)
{
	const struct env_var *var = env_find(m->env, name);

	if (m->rc || !var || !var->value || provenance(m->env, var) != ENV_FROM_SCHEDULER)
		return;
	m->rc = env_set(m->out, name, NULL, ENV_FROM_BERTH, why, m->err);
}

/* ---- the sections ---- */

#define PORT_WHY "kept reserved by rank 0's agent while rank 0 runs"
#define PORTS_WHY "free on all nodes, and reserved"
#define JAX_WHY "rank 0's address for jax.distributed"

/* A number of the rank's place, which is another launcher's if that started the rank. */
static void add_place(struct environment_builder *m, const char *name, long value, const char *why)
{
	if (!m->request->outer)
		set_always_int(m, name, value, why);
	else if (value >= 0)
		put_int(m, name, value, m->request->outer);
}

static void add_identity(struct environment_builder *m)
{
	add_place(m, "RANK", m->rank->rank, "number of this rank, counted node by node");
	add_place(m, "WORLD_SIZE", m->plan->world_size, "number of ranks in the job");
	add_place(m, "LOCAL_RANK", m->rank->local_rank, "number of this rank on its node");
	add_place(m, "LOCAL_WORLD_SIZE", (long)m->node->rank_count, "number of ranks on this node");
	add_place(m, "NODE_RANK", (long)m->node->node_rank,
		  "index of this node among those with ranks");
	add_place(m, "GROUP_RANK", (long)m->node->node_rank, "torchrun's name for NODE_RANK");
}

static void add_rendezvous(struct environment_builder *m)
{
	const char *why = m->plan->network.why ? m->plan->network.why : "the rendezvous address";

	set_always(m, "MASTER_ADDR", m->plan->network.address, why);
	if (m->plan->port)
		set_always_int(m, "MASTER_PORT", m->plan->port, PORT_WHY);
	else
		set_later(m, "MASTER_PORT", PORT_WHY);
}

/* Only if each rank sees just its own GPUs; otherwise the list is the node's. */
static void rank_devices(struct environment_builder *m, char *text, size_t size)
{
	*text = '\0';
	for (size_t i = 0; i < m->rank->gpu_count; i++) {
		int index = m->rank->gpus[i].index;
		char token[96];

		if (index < 0 || (size_t)index >= m->inventory->gpu_count ||
		    !gpus_list_name(m->inventory, (size_t)index, token, sizeof token))
			continue;
		text_append(text, size, "%s%s", *text ? "," : "", token);
	}
}

/* HIP applies its own list, else CUDA's, to what ROCr's list leaves. The plan has composed the
 * first two; Slurm may set CUDA's to the same GPUs as ROCr's. Source: ROCm's documentation, "GPU
 * isolation techniques". Intel's driver counts tiles (FLAT) unless ZE_FLAT_DEVICE_HIERARCHY is
 * COMPOSITE; berth plans whole GPUs. Source: Level Zero's programming guide, "Environment
 * variables". */
static void add_other_lists(struct environment_builder *m, uint16_t vendor)
{
	static const char *const hip[] = {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"};

	for (size_t i = 0; vendor == 0x1002 && i < sizeof hip / sizeof *hip; i++)
		if (!m->rc && env_get(m->env, hip[i]))
			m->rc = env_set(m->out, hip[i], NULL, ENV_FROM_BERTH,
					"HIP would apply it to what ROCR_VISIBLE_DEVICES leaves",
					m->err);
	if (vendor == 0x8086) {
		environment_put(m, "ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE",
				"a device is a whole GPU, as planned, not a tile");
		environment_put(m, "ZE_ENABLE_PCI_ID_DEVICE_ORDER", "1",
				"makes ordinals follow the plan's PCI order");
	}
	if (vendor == 0x10de)
		environment_put(m, "CUDA_DEVICE_ORDER", "PCI_BUS_ID",
				"makes ordinals follow the plan's PCI order");
	drop(m, "GPU_DEVICE_ORDINAL", "replaced by the list above");
}

/* The user's list limits the GPUs that the plan shares out; among them the order is the plan's. */
static void add_devices(struct environment_builder *m)
{
	const struct plan_gpu_vendor *vendor = plan_gpu_vendor(m->inventory);
	const struct env_var *given = env_find(m->env, vendor->list);
	const char *list = m->node->visible_devices;
	const char *hierarchy = env_get(m->env, "ZE_FLAT_DEVICE_HIERARCHY");
	char own[4096], why[512];

	if (m->request->no_gpus) {
		if (m->inventory->gpu_count)
			set_always(m, vendor->list, "",
				   "this rank gets no GPUs (--gpus-per-rank 0)");
		return;
	}
	if (!list) {
		rank_devices(m, own, sizeof own);
		list = own;
		snprintf(why, sizeof why, "this rank's own GPUs");
	} else {
		snprintf(why, sizeof why,
			 "the node's GPUs in local-rank order: %s:LOCAL_RANK is this rank's",
			 vendor->device);
	}
	if (!*list) {
		/* The first node's list does not apply to a node without such GPUs. */
		if (m->node != m->plan->nodes)
			drop(m, vendor->list, "the first node's list does not apply to this node");
		return;
	}
	/* The user's tiles; see lint_visible. More ranks than GPUs are meant to have one each. */
	if (vendor->id == 0x8086 && ((hierarchy && strcmp(hierarchy, "COMPOSITE") != 0) ||
				     m->node->rank_count > m->inventory->gpu_count))
		return;
	if (given && given->value && strcmp(given->value, list))
		text_append(why, sizeof why,
			    m->inventory->this_system
				    ? " (from the list %.200s)"
				    : " (the list %.200s does not apply to another machine)",
			    given->value);
	set_always(m, vendor->list, list, why);
	add_other_lists(m, vendor->id);
}

static int workers(const struct environment_builder *m)
{
	int per_rank = m->request->gpus_per_rank > 1 ? m->request->gpus_per_rank : 1;

	if (!m->request->per_node)
		return 1;
	if (m->request->ranks_per_node)
		return m->request->ranks_per_node;
	if (m->request->ranks)
		return m->request->ranks / (int)m->plan->nodes_with_ranks;
	return m->rank->gpu_count ? (int)m->rank->gpu_count / per_rank : 1;
}

static void add_threads(struct environment_builder *m)
{
	int count = workers(m), threads = m->rank->threads / (count > 0 ? count : 1);

	put_int(m, "OMP_NUM_THREADS", threads > 0 ? threads : 1,
		count > 1 ? "number of cores per worker of this process"
			  : "number of cores of this rank");
}

/* "10.0.0.1:29500", "[fd00::1]:29500". */
static void endpoint(const struct plan *plan, char *text, size_t size)
{
	bool v6 = strchr(plan->network.address, ':') != NULL;

	snprintf(text, size, "%s%s%s:%d", v6 ? "[" : "", plan->network.address, v6 ? "]" : "",
		 plan->port);
}

static void add_jax(struct environment_builder *m)
{
	char text[96];

	endpoint(m->plan, text, sizeof text);
	if (m->plan->port)
		environment_put(m, "JAX_COORDINATOR_ADDRESS", text, JAX_WHY);
	else if (!m->request->outer && !env_get(m->env, "JAX_COORDINATOR_ADDRESS"))
		set_later(m, "JAX_COORDINATOR_ADDRESS", JAX_WHY);
	add_place(m, "JAX_NUM_PROCESSES", m->plan->world_size,
		  "pass it to jax.distributed.initialize as num_processes");
	add_place(m, "JAX_PROCESS_ID", m->rank->rank,
		  "pass it to jax.distributed.initialize as process_id");
}

/* What torchrun's workers find, as in torch/distributed/elastic/agent/server/local_elastic_agent.py
 * of PyTorch 2.15: Lightning takes the number of ranks from the environment only with
 * TORCHELASTIC_RUN_ID. Left out on purpose: TORCHELASTIC_USE_AGENT_STORE (there is no agent's
 * store; rank 0 hosts it), TORCH_NCCL_ASYNC_ERROR_HANDLING (PyTorch's default fits), and
 * OMP_NUM_THREADS=1 (see add_threads). torchrun itself sets all of them for its own workers. */
static void add_torchelastic(struct environment_builder *m)
{
	environment_put(m, "ROLE_NAME", "default", "torchrun's name for the group of all ranks");
	set_always_int(m, "ROLE_RANK", m->rank->rank, "torchrun's name for RANK");
	set_always_int(m, "ROLE_WORLD_SIZE", m->plan->world_size, "torchrun's name for WORLD_SIZE");
	set_always_int(m, "GROUP_WORLD_SIZE", (long)m->plan->nodes_with_ranks,
		       "torchrun's name for the number of nodes with ranks");
	environment_put(m, "TORCHELASTIC_RUN_ID", m->plan->job_id,
			"makes Lightning and others use this environment");
	set_always_int(m, "TORCHELASTIC_RESTART_COUNT", m->plan->attempt,
		       "number of attempts before this one");
	set_always_int(m, "TORCHELASTIC_MAX_RESTARTS", m->request->max_restarts,
		       "the limit of --max-restarts");
}

/* lightning/pytorch/utilities/argparse.py of Lightning 2.6: without them, Trainer() trains alone in
 * each rank on a machine without GPUs. */
static void add_lightning(struct environment_builder *m)
{
	put_int(m, "PL_TRAINER_DEVICES", (long)m->node->rank_count,
		"Lightning's default for Trainer(devices=)");
	if (!m->request->outer)
		put_int(m, "PL_TRAINER_NUM_NODES", (long)m->plan->nodes_with_ranks,
			"Lightning's default for Trainer(num_nodes=)");
}

static void local_address(const struct environment_builder *m, char *text, size_t size)
{
	if (environment_one_node(m))
		snprintf(text, size, "%s", m->plan->network.address);
	else
		plan_node_address(m->inventory, &m->plan->network, text, size);
}

static void add_berth(struct environment_builder *m)
{
	const struct plan_request *request = m->request;
	char address[64];

	if (request->outside)
		plan_node_address(m->inventory, request->outside, address, sizeof address);
	else
		local_address(m, address, sizeof address);
	set_always(m, "BERTH_NODE_ADDR", address, "this node's, for the other nodes");
	set_always(m, "BERTH_JOB_ID", m->plan->job_id, "the job");
	set_always_int(m, "BERTH_NODE_RANK", (long)m->node->node_rank,
		       "index of this node among those with ranks");
	set_always_int(m, "BERTH_GPUS", (long)m->rank->gpu_count, "number of this rank's GPUs");
	set_always_int(m, "BERTH_ATTEMPT", m->plan->attempt, "number of attempts before this one");
	if (m->plan->end_time > 0)
		set_always_int(m, "BERTH_END_TIME", (long)m->plan->end_time,
			       "when the scheduler ends the job, Unix seconds");
}

/* A file in the agent's directory. */
__attribute__((format(printf, 4, 5))) static void
add_file(struct environment_builder *m, const char *name, const char *why, const char *file, ...)
{
	char text[64];
	va_list ap;

	va_start(ap, file);
	vsnprintf(text, sizeof text, file, ap);
	va_end(ap);
	if (!m->rc && m->request->dir)
		m->rc = env_setf(m->out, name, ENV_FROM_BERTH, why, m->err, "%s/%s",
				 m->request->dir, text);
	set_later(m, name, why);
}

/* Keep the user's own, if there is one. */
static bool keep(struct environment_builder *m, const char *name, const char *why)
{
	const struct env_var *var = env_find(m->env, name);

	if (!var || !var->value || !*var->value)
		return false;
	if (!m->rc)
		m->rc = env_set(m->out, name, var->value, provenance(m->env, var), why, m->err);
	return true;
}

/* Private files, so that nodes need no shared file system. */
static void add_files(struct environment_builder *m)
{
	static const char stop[] = "once this file exists, save a checkpoint and exit with code 75",
			  error[] = "where @record of PyTorch describes an exception";

	add_file(m, "BERTH_END_TIME_FILE",
		 "holds that time if berth learns it, or that it changed, after the start",
		 PLAN_FILE_END_TIME);
	add_file(m, "BERTH_PLAN_FILE", "this node's part of the plan as JSON", PLAN_FILE);
	if (!keep(m, "BERTH_STOP_FILE", stop))
		add_file(m, "BERTH_STOP_FILE", stop, PLAN_FILE_STOP);
	add_file(m, "BERTH_REPORT", "file in which the program may report how it ended",
		 PLAN_FILE_REPORT);
	add_file(m, "BERTH_HEARTBEAT_FILE", "where the rank reports its steps", PLAN_FILE_HEARTBEAT,
		 m->rank->local_rank);
	if (!keep(m, "TORCHELASTIC_ERROR_FILE", error))
		add_file(m, "TORCHELASTIC_ERROR_FILE", error, PLAN_FILE_ERROR, m->rank->local_rank);
}

/* What the controller and the agent know once the ranks start. */
static void add_start(struct environment_builder *m)
{
	const struct plan_request *request = m->request;

	if (request->run)
		set_always(m, "BERTH_RUN", request->run,
			   "runs inside this one may use what it uses");
	if (request->ports && *request->ports)
		set_always(m, "BERTH_PORTS", request->ports, PORTS_WHY);
	/* Open MPI names its shared memory by host and local rank, so simulated nodes would
	 * overwrite each other's. */
	if (request->dir && request->single_host && m->plan->node_count > 1)
		set_always(m, "OMPI_MCA_btl_vader_backing_directory", request->dir,
			   "simulated nodes share /dev/shm");
	if (request->dir)
		return;
	set_later(m, "BERTH_RUN", "runs inside this one may use what it uses");
	if (request->ports)
		set_later(m, "BERTH_PORTS", PORTS_WHY);
	set_later(m, "BERTH_STORE_SECRET", "of this run's key-value store");
	set_later(m, "PMIX_*", "from the PMIx server of this node's agent, with --pmix auto or on");
}

static void add_c10d(struct environment_builder *m)
{
	char text[96];

	endpoint(m->plan, text, sizeof text);
	environment_put(m, "PET_RDZV_ENDPOINT", text,
			"the rendezvous address for torchrun's c10d store");
	environment_put(m, "PET_RDZV_ID", m->plan->job_id, "the job");
}

/* Set it also for users who select c10d with arguments, which are not visible here; static
 * rendezvous reads neither. */
static void add_host(struct environment_builder *m)
{
	char text[64];

	environment_put(m, "PET_RDZV_CONF", m->node->node_rank ? "is_host=false" : "is_host=true",
			"torchrun compares host names, which fails on a second NIC");
	local_address(m, text, sizeof text);
	environment_put(m, "PET_LOCAL_ADDR", text,
			"workers take MASTER_ADDR from it, not from the host name");
}

/* torchrun's options as variables. A user's PET_RDZV_BACKEND=c10d works, too. */
static void add_torchrun(struct environment_builder *m)
{
	const char *backend = env_get(m->env, "PET_RDZV_BACKEND");

	set_always_int(m, "PET_NNODES", (long)m->plan->nodes_with_ranks,
		       "number of nodes with ranks");
	put_int(m, "PET_NPROC_PER_NODE", workers(m), "number of workers of this process");
	set_always_int(m, "PET_NODE_RANK", (long)m->node->node_rank,
		       "index of this node among those with ranks");
	set_always(m, "PET_MASTER_ADDR", m->plan->network.address, "the rendezvous address");
	if (m->plan->port)
		set_always_int(m, "PET_MASTER_PORT", m->plan->port, PORT_WHY);
	else
		set_later(m, "PET_MASTER_PORT", PORT_WHY);
	add_host(m);
	if (backend && !strcmp(backend, "c10d") && m->plan->port)
		add_c10d(m);
}

/* Programs that ask Slurm for their place (Lightning, submitit, users of mpi4py) must get the same
 * place as in RANK. Without this a rank would inherit the batch script's: rank 0 of one. Also, Open
 * MPI treats a process as a world of one if there is a job but no step. */
static void add_slurm(struct environment_builder *m)
{
	static const char why[] = "the value that srun would set for this rank";

	if (!env_get(m->env, "SLURM_JOB_ID") && !env_get(m->env, "SLURM_JOBID"))
		return;
	set_always_int(m, "SLURM_PROCID", m->rank->rank, why);
	set_always_int(m, "SLURM_LOCALID", m->rank->local_rank, why);
	set_always_int(m, "SLURM_NODEID", (long)m->node->node_rank, why);
	set_always(m, "SLURMD_NODENAME", m->node->node ? m->node->node : "", why);
	set_always_int(m, "SLURM_NTASKS", m->plan->world_size, why);
	set_always_int(m, "SLURM_NPROCS", m->plan->world_size, why);
	set_always_int(m, "SLURM_STEP_NUM_TASKS", m->plan->world_size, why);
	set_always_int(m, "SLURM_STEP_NUM_NODES", (long)m->plan->nodes_with_ranks, why);
	set_always_int(m, "SLURM_NNODES", (long)m->plan->nodes_with_ranks, why);
	if (m->plan->node_list) { /* JAX and Lightning look for their coordinator in it */
		set_always(m, "SLURM_STEP_NODELIST", m->plan->node_list, why);
		set_always(m, "SLURM_STEP_TASKS_PER_NODE", m->plan->tasks_list, why);
		set_always(m, "SLURM_TASKS_PER_NODE", m->plan->tasks_list, why);
	}
	const char *step = env_get(m->env, "SLURM_STEP_ID");

	if (!step || *step == '-') /* -5: Slurm 26.05's name for the batch script */
		set_always(m, "SLURM_STEP_ID", "4294967291",
			   "the batch script's step ID; without one, Open MPI treats each rank as "
			   "a world of one");
}

int plan_environment(const struct plan *plan, const struct inventory *inventory, size_t node_index,
		     size_t local_rank, const struct plan_request *request, const struct env *env,
		     struct env **out, struct error *err)
{
	struct environment_builder m = {
		.plan = plan, .inventory = inventory, .request = request, .env = env, .err = err};

	if (node_index >= plan->node_count || local_rank >= plan->nodes[node_index].rank_count)
		return error_set(err, ERR_INTERNAL, "the plan has no local rank %zu on node %zu",
				 local_rank, node_index);
	m.node = &plan->nodes[node_index];
	m.rank = &m.node->ranks[local_rank];
	m.out = env_new();
	if (!m.out)
		return error_memory(err, "a rank's environment");
	add_identity(&m);
	if (!request->outer)
		add_rendezvous(&m);
	add_devices(&m);
	add_threads(&m);
	environment_add_interfaces(&m);
	environment_add_fabric(&m);
	add_jax(&m);
	if (!request->outer && !request->per_node)
		add_torchelastic(&m);
	if (!request->per_node)
		add_lightning(&m);
	if (!request->outer) {
		add_berth(&m);
		add_files(&m);
		add_start(&m);
		if (request->per_node)
			add_torchrun(&m);
		add_slurm(&m);
	}
	if (m.rc) {
		env_free(m.out);
		return m.rc;
	}
	*out = m.out;
	return 0;
}
