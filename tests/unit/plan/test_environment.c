/* SPDX-License-Identifier: BSD-3-Clause */
/* The environment of a rank, and lint's warnings about the user's variables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "inventories.h"

/* ---- up to three nodes of a sort ---- */

struct job {
	struct inventory inventories[3];
	size_t count;
	struct alloc alloc;
	struct alloc_node nodes[3];
	struct plan_request request;
	struct env *env;
	struct plan plan;
};

enum sort { SORT_IB, SORT_SLINGSHOT, SORT_EFA, SORT_TCP, SORT_ROCE };

static struct inventory make_card(enum sort sort, int index)
{
	char name[16], text[64];
	struct inventory inventory;

	snprintf(name, sizeof name, "node%d", index);
	inventory = make_inventory(name, 2, 1, 4, 2);
	make_gpu(&inventory, "0000:01:00.0", 0);
	make_gpu(&inventory, "0000:81:00.0", 1);
	make_nic(&inventory, "eno1", sort == SORT_IB ? "mlx5_9" : "",
		 sort == SORT_IB ? NIC_ROCE : NIC_ETHERNET, 0)
		->management = sort != SORT_TCP;
	for (int n = 0; n < 2 && sort != SORT_TCP; n++) {
		static const char *const nets[] = {"ib%d", "hsn%d", "", "", "roce%d"};
		static const char *const rdmas[] = {"mlx5_%d", "cxi%d", "rdmap%d", "", "bnxt%d"};
		static const enum nic_kind kinds[] = {NIC_INFINIBAND, NIC_SLINGSHOT, NIC_EFA,
						      NIC_ETHERNET, NIC_ROCE};
		char net[16], rdma[16];

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
		snprintf(net, sizeof net, nets[sort], n);
		snprintf(rdma, sizeof rdma, rdmas[sort], n);
#pragma GCC diagnostic pop
		make_nic(&inventory, net, rdma, kinds[sort], n);
		snprintf(text, sizeof text, "10.%d.0.%d/16", n + 1, index + 1);
		if (*net)
			make_address(&inventory, net, text);
	}
	make_address(&inventory, "lo", "127.0.0.1/8");
	snprintf(text, sizeof text, "192.168.0.%d/24", index + 1);
	make_address(&inventory, "eno1", text);
	return inventory;
}

static void job_start(struct job *job, enum sort sort, size_t count)
{
	memset(job, 0, sizeof *job);
	job->count = count;
	for (size_t n = 0; n < count; n++) {
		job->inventories[n] = make_card(sort, (int)n);
		job->nodes[n] = (struct alloc_node){job->inventories[n].node, 2, 2};
	}
	job->alloc = (struct alloc){.job_id = (char *)(uintptr_t) "77",
				    .node_count = count,
				    .nodes = job->nodes,
				    .end_time = 1800000000};
	job->request.port = 29500;
	job->env = env_new();
	assert_non_null(job->env);
}

static void job_plan(struct job *job)
{
	struct error err = {0};

	if (plan_make(&job->alloc, job->inventories, job->count, &job->request, NULL, job->env,
		      &job->plan, &err))
		fail_msg("%s", err.text);
}

static void job_request_end(struct job *job)
{
	plan_free(&job->plan);
	env_free(job->env);
	for (size_t n = 0; n < job->count; n++)
		inventory_free(&job->inventories[n]);
}

static struct env *rank_env(struct job *job, size_t node, size_t local_rank)
{
	struct error err = {0};
	struct env *out = NULL;

	if (plan_environment(&job->plan, &job->inventories[node], node, local_rank, &job->request,
			     job->env, &out, &err))
		fail_msg("%s", err.text);
	return out;
}

static void set(struct job *job, const char *name, const char *value)
{
	struct error err = {0};

	assert_int_equal(env_set(job->env, name, value, ENV_FROM_USER, NULL, &err), 0);
}

/* Check name=value, or that name is absent if value is NULL. Every variable has a reason. */
static void expect(const struct env *env, const char *name, const char *value)
{
	const char *got = env_get(env, name);

	if (!value != !got || (value && strcmp(value, got)))
		fail_msg("%s is '%s', expected '%s'", name, got ? got : "(absent)",
			 value ? value : "(absent)");
	if (value && (!env_find(env, name)->why || !*env_find(env, name)->why))
		fail_msg("%s has no reason", name);
}

static void expect_from(const struct env *env, const char *name, const char *value,
			enum env_from from)
{
	expect(env, name, value);
	if (env_find(env, name)->from != from)
		fail_msg("%s is from %s", name, env_from_name(env_find(env, name)->from));
}

/* ---- tests ---- */

static void test_identity(void **state)
{
	struct job job;
	struct env *env;

	job_start(&job, SORT_IB, 2);
	job.request.attempt = 2;
	job.request.max_restarts = 5;
	job.request.dir = "/run/agent";
	job.request.run = "run-1";
	job.request.ports = "20480-20481";
	job_plan(&job);
	job.request.single_host = true; /* as the controller does, once the network is chosen */
	env = rank_env(&job, 1, 1);
	static const char *const expected[][2] = {
		{"RANK", "3"},
		{"WORLD_SIZE", "4"},
		{"LOCAL_RANK", "1"},
		{"LOCAL_WORLD_SIZE", "2"},
		{"NODE_RANK", "1"},
		{"GROUP_RANK", "1"},
		{"ROLE_NAME", "default"},
		{"ROLE_RANK", "3"},
		{"ROLE_WORLD_SIZE", "4"},
		{"GROUP_WORLD_SIZE", "2"},
		{"TORCHELASTIC_RUN_ID", "77"},
		{"TORCHELASTIC_RESTART_COUNT", "2"},
		{"TORCHELASTIC_MAX_RESTARTS", "5"},
		{"TORCHELASTIC_USE_AGENT_STORE", NULL},
		{"MASTER_ADDR", "10.1.0.1"},
		{"MASTER_PORT", "29500"},
		{"CUDA_VISIBLE_DEVICES", "0,1"},
		{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"},
		{"OMP_NUM_THREADS", "4"},
		{"GLOO_SOCKET_IFNAME", "ib0"},
		{"TP_SOCKET_IFNAME", "ib0"},
		{"FI_TCP_IFACE", "ib0"},
		{"UCX_NET_DEVICES", "mlx5_1:1"},
		{"OMPI_MCA_btl_tcp_if_include", "10.1.0.0/16"},
		{"OMPI_MCA_oob_tcp_if_include", "10.1.0.0/16"},
		{"PRTE_MCA_prte_if_include", "10.1.0.0/16"},
		{"JAX_COORDINATOR_ADDRESS", "10.1.0.1:29500"},
		{"JAX_NUM_PROCESSES", "4"},
		{"JAX_PROCESS_ID", "3"},
		{"BERTH_JOB_ID", "77"},
		{"BERTH_NODE_RANK", "1"},
		{"BERTH_ATTEMPT", "2"},
		{"BERTH_END_TIME", "1800000000"},
		{"BERTH_PLAN_FILE", "/run/agent/plan.json"},
		{"BERTH_STOP_FILE", "/run/agent/stop"},
		{"BERTH_REPORT", "/run/agent/report.json"},
		{"BERTH_END_TIME_FILE", "/run/agent/end-time"},
		{"BERTH_HEARTBEAT_FILE", "/run/agent/heartbeat-1"},
		{"TORCHELASTIC_ERROR_FILE", "/run/agent/error-1.json"},
		{"BERTH_RUN", "run-1"},
		{"BERTH_PORTS", "20480-20481"},
		{"OMPI_MCA_btl_vader_backing_directory", "/run/agent"},
		{"PET_NNODES", NULL},
		{"NCCL_NET", NULL},
		{"NCCL_SOCKET_IFNAME", "ib0"},
		{"NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1"},
	};

	for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
		expect(env, expected[i][0], expected[i][1]);
	env_free(env);
	job_request_end(&job);
}

/* Before the start the result says what follows; with an agent's directory nothing is left open. */
static void test_unknowns_follow_at_the_start(void **state)
{
	struct job job;
	struct env *env;
	static const char *const later[] = {
		"MASTER_PORT",	   "JAX_COORDINATOR_ADDRESS", "BERTH_PLAN_FILE",
		"BERTH_STOP_FILE", "BERTH_HEARTBEAT_FILE",    "TORCHELASTIC_ERROR_FILE",
		"BERTH_RUN",	   "BERTH_STORE_SECRET",      "PMIX_*",
	};

	job_start(&job, SORT_IB, 2);
	job.request.port = 0;
	job.alloc.end_time = 0;
	job_plan(&job);
	env = rank_env(&job, 0, 0);
	expect(env, "MASTER_PORT", NULL);
	expect(env, "JAX_COORDINATOR_ADDRESS", NULL);
	expect(env, "BERTH_END_TIME", NULL);
	expect(env, "BERTH_PLAN_FILE", NULL);
	for (size_t i = 0; i < sizeof later / sizeof *later; i++)
		expect_from(env, later[i], NULL, ENV_FROM_START);
	assert_null(env_find(env, "BERTH_PORTS"));
	env_free(env);
	job.request.ports = "";
	env = rank_env(&job, 0, 0);
	expect_from(env, "BERTH_PORTS", NULL, ENV_FROM_START);
	env_free(env);
	job.request.dir = "/run/agent";
	job.request.ports = NULL;
	set(&job, "BERTH_STOP_FILE", "/shared/stop");
	set(&job, "TORCHELASTIC_ERROR_FILE", "/shared/error");
	env = rank_env(&job, 0, 0);
	expect(env, "BERTH_STOP_FILE", "/shared/stop");
	expect_from(env, "TORCHELASTIC_ERROR_FILE", "/shared/error", ENV_FROM_USER);
	for (size_t i = 0; i < env_count(env); i++)
		assert_int_not_equal(env_at(env, i)->from, ENV_FROM_START);
	env_free(env);
	job_request_end(&job);
}

/* For each fabric: what is set, and what is not set because the library does the same. */
static void test_fabrics(void **state)
{
	static const struct {
		enum sort sort;
		const char *name, *value;
	} table[] = {
		{SORT_IB, "NCCL_CROSS_NIC", NULL},
		{SORT_IB, "MPICH_OFI_NIC_POLICY", NULL},
		{SORT_SLINGSHOT, "NCCL_SOCKET_IFNAME", "hsn0"},
		{SORT_SLINGSHOT, "NCCL_IB_HCA", NULL},
		{SORT_SLINGSHOT, "NCCL_NET", NULL}, /* no plug-in is visible */
		{SORT_SLINGSHOT, "NCCL_CROSS_NIC", "1"},
		{SORT_SLINGSHOT, "NCCL_NET_GDR_LEVEL", "PHB"},
		{SORT_SLINGSHOT, "FI_MR_CACHE_MONITOR", "userfaultfd"},
		{SORT_SLINGSHOT, "FI_CXI_DISABLE_HOST_REGISTER", "1"},
		{SORT_SLINGSHOT, "FI_CXI_DEFAULT_CQ_SIZE", "131072"},
		{SORT_SLINGSHOT, "FI_CXI_DEFAULT_TX_SIZE", "2048"},
		{SORT_SLINGSHOT, "FI_CXI_RDZV_PROTO",
		 NULL},				      /* the job step allows rendezvous gets */
		{SORT_SLINGSHOT, "NCCL_PROTO", NULL}, /* no GH200 */
		{SORT_SLINGSHOT, "MPICH_OFI_NIC_POLICY", "USER"},
		{SORT_SLINGSHOT, "MPICH_OFI_NIC_MAPPING", "0:0;1:1"},
		{SORT_SLINGSHOT, "UCX_NET_DEVICES", "hsn0"},
		{SORT_EFA, "FI_PROVIDER", NULL},
		{SORT_EFA, "NCCL_SOCKET_IFNAME", NULL}, /* NCCL would also use eno1 */
		{SORT_EFA, "GLOO_SOCKET_IFNAME", "eno1"},
		{SORT_EFA, "NCCL_IB_HCA", NULL},
		{SORT_TCP, "NCCL_SOCKET_IFNAME", NULL},
		{SORT_TCP, "GLOO_SOCKET_IFNAME", "eno1"},
		{SORT_TCP, "NCCL_IB_HCA", NULL},
		{SORT_TCP, "UCX_NET_DEVICES", "eno1"},
		{SORT_ROCE, "NCCL_IB_HCA", NULL}, /* every RDMA port belongs to the fabric */
		{SORT_ROCE, "NCCL_SOCKET_IFNAME", "roce0"},
		{SORT_ROCE, "UCX_NET_DEVICES", "bnxt0:1"},
	};

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		struct job job;
		struct env *env;

		job_start(&job, table[i].sort, 2);
		job_plan(&job);
		env = rank_env(&job, 0, 0);
		expect(env, table[i].name, table[i].value);
		env_free(env);
		job_request_end(&job);
	}
}

static void test_conditions(void **state)
{
	struct job job;
	struct env *env;

	job_start(&job, SORT_SLINGSHOT, 2);
	set(&job, "LD_LIBRARY_PATH", "/opt/aws-ofi-nccl/lib:/usr/lib");
	set(&job, "SLURM_NETWORK", "disable_rdzv_get,job_vni");
	job.inventories[0].gpus[0].device = job.inventories[0].gpus[1].device = 0x2342;
	job_plan(&job);
	env = rank_env(&job, 0, 0);
	expect(env, "NCCL_NET", "AWS Libfabric");
	expect(env, "FI_CXI_RDZV_PROTO", "alt_read");
	expect(env, "FI_CXI_RDZV_EAGER_SIZE", "0");
	expect(env, "NCCL_PROTO", "^LL128");
	env_free(env);
	job_request_end(&job);
}

/* NCCL hangs unless all NCCL_* variables are equal on every rank of a node. */
static void test_nccl_is_the_nodes(void **state)
{
	for (int sort = SORT_IB; sort <= SORT_ROCE; sort++) {
		struct job job;
		struct env *first, *second;

		job_start(&job, (enum sort)sort, 2);
		job_plan(&job);
		first = rank_env(&job, 0, 0);
		second = rank_env(&job, 0, 1);
		for (size_t v = 0; v < env_count(first); v++) {
			const struct env_var *var = env_at(first, v);

			if (!strncmp(var->name, "NCCL_", 5) || !strncmp(var->name, "MPICH_", 6) ||
			    !strcmp(var->name, "CUDA_VISIBLE_DEVICES"))
				assert_string_equal(var->value, env_get(second, var->name));
		}
		assert_int_equal(env_count(first), env_count(second));
		env_free(first);
		env_free(second);
		job_request_end(&job);
	}
}

static void test_one_node(void **state)
{
	struct job job;
	struct env *env;

	job_start(&job, SORT_SLINGSHOT, 1);
	job_plan(&job);
	env = rank_env(&job, 0, 0);
	expect(env, "MASTER_ADDR", "127.0.0.1");
	for (size_t v = 0; v < env_count(env); v++) {
		const char *name = env_at(env, v)->name;

		if (!strncmp(name, "NCCL_", 5) || !strncmp(name, "FI_", 3) ||
		    !strncmp(name, "UCX_", 4) || !strncmp(name, "OMPI_", 5) ||
		    !strncmp(name, "MPICH_", 6) || strstr(name, "IFNAME"))
			fail_msg("%s is set on one node", name);
	}
	env_free(env);
	job_request_end(&job);
}

/* Precedence: an option over the user, the user over berth, berth over a scheduler. */
static void test_provenance(void **state)
{
	struct job job;
	struct env *env;

	job_start(&job, SORT_IB, 2);
	set(&job, "PBS_JOBID", "77.server");
	set(&job, "NCPUS", "64");
	set(&job, "OMP_NUM_THREADS", "64");
	set(&job, "CUDA_VISIBLE_DEVICES", "GPU-x,GPU-y");
	set(&job, "GPU_DEVICE_ORDINAL", "0,1");
	set(&job, "GLOO_SOCKET_IFNAME", "eno1");
	set(&job, "NCCL_IB_HCA", "mlx5_0");
	set(&job, "RANK", "9");
	job_plan(&job);
	env = rank_env(&job, 0, 0);
	expect_from(env, "OMP_NUM_THREADS", "4", ENV_FROM_BERTH); /* PBS's, not the user's */
	expect_from(env, "CUDA_VISIBLE_DEVICES", "0,1", ENV_FROM_BERTH);
	assert_non_null(strstr(env_find(env, "CUDA_VISIBLE_DEVICES")->why, "GPU-x,GPU-y"));
	expect_from(env, "GLOO_SOCKET_IFNAME", "eno1", ENV_FROM_USER);
	assert_non_null(strstr(env_find(env, "GLOO_SOCKET_IFNAME")->why, "berth would set ib0"));
	expect_from(env, "NCCL_IB_HCA", "mlx5_0", ENV_FROM_USER);
	expect_from(env, "RANK", "0", ENV_FROM_BERTH);
	assert_null(env_get(env, "GPU_DEVICE_ORDINAL"));
	assert_non_null(env_find(env, "GPU_DEVICE_ORDINAL")); /* marked to be removed */
	env_free(env);
	plan_free(&job.plan);

	job.request.iface = "ib1";
	job_plan(&job);
	env = rank_env(&job, 1, 0);
	expect(env, "MASTER_ADDR", "10.2.0.1");
	expect_from(env, "GLOO_SOCKET_IFNAME", "ib1", ENV_FROM_OPTION);
	env_free(env);
	job_request_end(&job);
}

static void test_users_threads_stay(void **state)
{
	struct job job;
	struct env *env;

	job_start(&job, SORT_IB, 2);
	set(&job, "PBS_JOBID", "77.server");
	set(&job, "NCPUS", "64");
	set(&job, "OMP_NUM_THREADS", "2");
	job_plan(&job);
	env = rank_env(&job, 0, 0);
	expect_from(env, "OMP_NUM_THREADS", "2", ENV_FROM_USER);
	env_free(env);
	job_request_end(&job);
}

static void test_own_gpus(void **state)
{
	struct job job;
	struct env *env;

	job_start(&job, SORT_IB, 2);
	job.request.gpus_visible_own = true;
	job_plan(&job);
	env = rank_env(&job, 0, 1);
	expect(env, "CUDA_VISIBLE_DEVICES", "1");
	env_free(env);
	job_request_end(&job);
}

/* AMD's and Intel's GPUs: the vendor's list in local-rank order, and no list that would apply
 * twice. */
static void test_other_vendors(void **state)
{
	struct job job;
	struct env *env;

	for (int flat = -1; flat < 3; flat++) {
		job_start(&job, SORT_IB, 2);
		if (flat == 2) /* a rank per tile */
			job.request.ranks_per_node = 2 * (int)job.inventories[0].gpu_count;
		for (size_t n = 0; n < 2; n++)
			for (size_t g = 0; g < job.inventories[n].gpu_count; g++)
				job.inventories[n].gpus[g].vendor = flat < 0 ? 0x1002 : 0x8086;
		set(&job, "CUDA_VISIBLE_DEVICES", "1");
		if (flat < 0)
			set(&job, "HIP_VISIBLE_DEVICES", "0");
		if (flat == 1)
			set(&job, "ZE_FLAT_DEVICE_HIERARCHY", "FLAT");
		job_plan(&job);
		env = rank_env(&job, 0, 1);
		if (flat < 0) {
			expect_from(env, "ROCR_VISIBLE_DEVICES", "0,1", ENV_FROM_BERTH);
			assert_non_null(env_find(env, "HIP_VISIBLE_DEVICES"));
			assert_null(env_get(env, "HIP_VISIBLE_DEVICES"));
			assert_non_null(env_find(env, "CUDA_VISIBLE_DEVICES"));
			assert_null(env_get(env, "CUDA_VISIBLE_DEVICES"));
			assert_null(env_find(env, "ZE_AFFINITY_MASK"));
		} else if (!flat) {
			expect_from(env, "ZE_AFFINITY_MASK", "0,1", ENV_FROM_BERTH);
			expect(env, "ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE");
			expect(env, "ZE_ENABLE_PCI_ID_DEVICE_ORDER", "1");
			assert_null(env_find(env, "ROCR_VISIBLE_DEVICES"));
		} else {
			assert_null(env_find(env, "ZE_AFFINITY_MASK")); /* the user's tiles */
		}
		env_free(env);
		job_request_end(&job);
	}
}

/* "hsn1" is also a prefix of "hsn10". */
static void test_prefix(void **state)
{
	struct job job;
	struct env *env;

	job_start(&job, SORT_SLINGSHOT, 2);
	job.request.iface = "hsn1";
	for (size_t n = 0; n < 2; n++)
		make_address(&job.inventories[n], "hsn10", "10.77.0.1/16");
	job_plan(&job);
	env = rank_env(&job, 1, 0);
	expect(env, "NCCL_SOCKET_IFNAME", "=hsn1");
	expect(env, "GLOO_SOCKET_IFNAME", "hsn1");
	env_free(env);
	job_request_end(&job);
}

static void test_ipv6(void **state)
{
	struct job job;
	struct env *env;

	job_start(&job, SORT_IB, 2);
	make_address(&job.inventories[0], "ib0", "fd00::1/64");
	make_address(&job.inventories[1], "ib0", "fd00::2/64");
	job.request.subnet = "fd00::/64";
	job_plan(&job);
	env = rank_env(&job, 1, 0);
	expect(env, "MASTER_ADDR", "fd00::1");
	expect(env, "JAX_COORDINATOR_ADDRESS", "[fd00::1]:29500");
	expect(env, "OMPI_MCA_btl_tcp_if_include", "ib0"); /* Open MPI reads IPv4 ranges only */
	env_free(env);
	job_request_end(&job);
}

static void test_per_node(void **state)
{
	struct job job;
	struct env *env;

	job_start(&job, SORT_IB, 2);
	job.request.per_node = true;
	set(&job, "PET_RDZV_BACKEND", "c10d");
	job_plan(&job);
	assert_int_equal(job.plan.world_size, 2);
	env = rank_env(&job, 1, 0);
	static const char *const expected[][2] = {
		{"PET_NNODES", "2"},
		{"PET_NPROC_PER_NODE", "2"},
		{"PET_NODE_RANK", "1"},
		{"PET_MASTER_ADDR", "10.1.0.1"},
		{"PET_MASTER_PORT", "29500"},
		{"PET_RDZV_ENDPOINT", "10.1.0.1:29500"},
		{"PET_RDZV_ID", "77"},
		{"PET_RDZV_CONF", "is_host=false"},
		{"PET_LOCAL_ADDR", "10.1.0.2"},
		{"CUDA_VISIBLE_DEVICES", "0,1"},
		{"OMP_NUM_THREADS", "4"},
	};

	for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
		expect(env, expected[i][0], expected[i][1]);
	env_free(env);
	env = rank_env(&job, 0, 0);
	expect(env, "PET_RDZV_CONF", "is_host=true");
	env_free(env);
	/* Users who pass the rendezvous to torchrun in arguments need these two, too. */
	env_drop(job.env, "PET_RDZV_BACKEND");
	env = rank_env(&job, 0, 0);
	expect(env, "PET_RDZV_CONF", "is_host=true");
	expect(env, "PET_LOCAL_ADDR", "10.1.0.1");
	expect(env, "PET_RDZV_ENDPOINT", NULL);
	env_free(env);
	job_request_end(&job);
}

/* ---- nodes without ranks ---- */

/* The plan of a Slurm job. If taken >= 0, another run uses that node's GPUs. */
static void job_plan_slurm(struct job *job, size_t count, const struct plan_request *request,
			   int taken)
{
	static char claim[] = "another run";

	job_start(job, SORT_IB, count);
	job->alloc.source = ALLOC_FROM_SLURM;
	job->request = *request;
	job->request.port = 29500;
	for (size_t g = 0; taken >= 0 && g < job->inventories[taken].gpu_count; g++)
		job->inventories[taken].gpus[g].claimed_by = strdup(claim);
	set(job, "SLURM_JOB_ID", "77");
	set(job, "SLURM_NNODES", "3");
	job_plan(job);
}

static const struct {
	struct plan_request request;
	int taken;
	size_t node; /* index of the last node with ranks */
	const char *name, *value, *why;
} without_ranks[] = {
#define SPARE {.ranks = 4, .spares = 1, .max_restarts = 1}, -1, 1
#define TORCHRUN {.ranks = 4, .spares = 1, .per_node = true}, -1, 1
#define FEWER {.ranks = 2}, -1, 1
#define TAKEN {.ranks = 4}, 1, 2
#define ALONE {.ranks = 1}, 0, 1
	{SPARE, "NODE_RANK", "1", "a spare"},
	{SPARE, "GROUP_RANK", "1", "a spare"},
	{SPARE, "GROUP_WORLD_SIZE", "2", "a spare"},
	{SPARE, "BERTH_NODE_RANK", "1", "a spare"},
	{SPARE, "PL_TRAINER_DEVICES", "2", "Lightning wants devices * nodes = WORLD_SIZE"},
	{SPARE, "PL_TRAINER_NUM_NODES", "2", "a spare"},
	{SPARE, "SLURM_NODEID", "1", "a spare"},
	{SPARE, "SLURM_NNODES", "2", "as srun -N2 in a job of three nodes"},
	{SPARE, "SLURM_STEP_NUM_NODES", "2", "a spare"},
	{SPARE, "SLURM_STEP_NODELIST", "node[0-1]", "a spare"},
	{SPARE, "SLURM_STEP_TASKS_PER_NODE", "2(x2)", "a spare"},
	{TORCHRUN, "PET_NNODES", "2", "torchrun waits for so many"},
	{TORCHRUN, "PET_NPROC_PER_NODE", "2", "4 workers on 2 nodes"},
	{TORCHRUN, "PET_NODE_RANK", "1", "a spare"},
	{TORCHRUN, "SLURM_NNODES", "2", "a spare"},
	{FEWER, "NODE_RANK", "1", "fewer ranks than nodes"},
	{FEWER, "GROUP_WORLD_SIZE", "2", "fewer ranks than nodes"},
	{FEWER, "PL_TRAINER_DEVICES", "1", "fewer ranks than nodes"},
	{FEWER, "PL_TRAINER_NUM_NODES", "2", "fewer ranks than nodes"},
	{FEWER, "SLURM_NNODES", "2", "fewer ranks than nodes"},
	{FEWER, "SLURM_STEP_NUM_NODES", "2", "fewer ranks than nodes"},
	{TAKEN, "NODE_RANK", "1", "dense: another run uses the node between"},
	{TAKEN, "GROUP_RANK", "1", "dense"},
	{TAKEN, "BERTH_NODE_RANK", "1", "dense"},
	{TAKEN, "GROUP_WORLD_SIZE", "2", "another run uses the node between"},
	{TAKEN, "SLURM_NODEID", "1", "the index in SLURM_STEP_NODELIST"},
	{TAKEN, "SLURM_STEP_NODELIST", "node[0,2]", "another run uses the node between"},
	{ALONE, "NODE_RANK", "0", "another run uses the first node"},
	{ALONE, "PL_TRAINER_NUM_NODES", "1", "another run uses the first node"},
	{ALONE, "SLURM_NODEID", "0", "another run uses the first node"},
};

static void test_nodes_without_ranks(void **state)
{
	int wrong = 0;

	for (size_t i = 0; i < sizeof without_ranks / sizeof *without_ranks; i++) {
		struct job job;
		struct env *env;
		const char *got;

		job_plan_slurm(&job, 3, &without_ranks[i].request, without_ranks[i].taken);
		env = rank_env(&job, without_ranks[i].node, 0);
		got = env_get(env, without_ranks[i].name);
		if (!got || strcmp(got, without_ranks[i].value)) {
			print_error("row %zu: %s is '%s', expected '%s': %s\n", i,
				    without_ranks[i].name, got ? got : "(absent)",
				    without_ranks[i].value, without_ranks[i].why);
			wrong++;
		}
		env_free(env);
		job_request_end(&job);
	}
	assert_int_equal(wrong, 0);
}

/* Beside nodes without ranks, a rank has the variables that it has in a job without such nodes. */
static void test_same_without_spares(void **state)
{
	static const struct plan_request requests[] = {
		{.ranks = 4, .spares = 1, .max_restarts = 1},
		{.ranks = 4, .spares = 1, .max_restarts = 1, .per_node = true},
		{.ranks_per_node = 2, .spares = 1, .max_restarts = 1},
		{.spares = 1, .max_restarts = 1},
		{.ranks = 2},
	};
	int wrong = 0;

	for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
		struct plan_request request = requests[i];
		struct job with, without;

		job_plan_slurm(&with, 3, &request, -1);
		request.spares = 0;
		job_plan_slurm(&without, 2, &request, -1);
		assert_int_equal(with.plan.world_size, without.plan.world_size);
		for (size_t n = 0; n < 2; n++)
			for (size_t r = 0; r < with.plan.nodes[n].rank_count; r++) {
				struct env *a = rank_env(&with, n, r),
					   *b = rank_env(&without, n, r);

				assert_int_equal(env_count(a), env_count(b));
				for (size_t v = 0; v < env_count(b); v++) {
					const char *name = env_at(b, v)->name;
					const char *got = env_get(a, name),
						   *want = env_get(b, name);

					if (!got == !want && (!got || !strcmp(got, want)))
						continue;
					print_error("request %zu, node %zu: %s is '%s', expected "
						    "'%s'\n",
						    i, n, name, got ? got : "(absent)",
						    want ? want : "(absent)");
					wrong++;
				}
				env_free(a);
				env_free(b);
			}
		job_request_end(&with);
		job_request_end(&without);
	}
	assert_int_equal(wrong, 0);
}

/* ---- lint ---- */

static void test_lint(void **state)
{
	static const struct {
		enum sort sort;
		const char *name, *value;
		const char *said; /* NULL: no warning */
	} table[] = {
		{SORT_IB, "NCCL_SOCKET_IFNAME", "ib0", NULL},
		{SORT_IB, "NCCL_SOCKET_IFNAME", "ib", NULL},
		{SORT_IB, "NCCL_SOCKET_IFNAME", "^bond", NULL},
		{SORT_IB, "NCCL_SOCKET_IFNAME", "=ib", "the interface ib, which no node has"},
		{SORT_IB, "NCCL_SOCKET_IFNAME", "eth0", "the interface eth0, which no node has"},
		{SORT_IB, "NCCL_SOCKET_IFNAME", "ib0,eth7", "the interface eth7"},
		{SORT_IB, "GLOO_SOCKET_IFNAME", "ib", "the interface ib, which no node has"},
		{SORT_IB, "GLOO_SOCKET_IFNAME", "spare0", "1 of 2 nodes lack (first: node1)"},
		{SORT_IB, "NCCL_IB_HCA", "mlx5_0,mlx5_1", NULL},
		{SORT_IB, "NCCL_IB_HCA", "mlx5", "includes mlx5_9, a management NIC"},
		{SORT_IB, "NCCL_IB_HCA", "=mlx5_0,mlx5_9:1", "includes mlx5_9"},
		{SORT_IB, "NCCL_IB_HCA", "^mlx5_9", NULL},
		{SORT_IB, "NCCL_IB_HCA", "=mlx5_0:1", NULL},
		{SORT_IB, "NCCL_IB_HCA", "hfi1_0", "the HCA hfi1_0, which no node has"},
		{SORT_IB, "NCCL_IB_DISABLE", "1", "NCCL will use TCP"},
		{SORT_IB, "NCCL_SOCKET_IFNAME", "bond", NULL},
		{SORT_IB, "NCCL_SOCKET_IFNAME", "bond0", "also matches bond0.7"},
		{SORT_IB, "NCCL_SOCKET_IFNAME", "ib0,bond0", "write =ib0,bond0"},
		{SORT_IB, "NCCL_SOCKET_IFNAME", "=bond0", NULL},
		{SORT_IB, "UCX_NET_DEVICES", "all", NULL},
		{SORT_IB, "UCX_NET_DEVICES", "mlx5_0:1", NULL},
		{SORT_IB, "UCX_NET_DEVICES", "mlx5_0:1,mlx5_7:1",
		 "the device mlx5_7:1, which no node"},
		{SORT_IB, "NCCL_COMM_ID", "10.0.0.1:29600", "share one rendezvous address"},
		{SORT_IB, "NCCL_HOSTID", "gpu", "share one node, and fails or hangs"},
		{SORT_IB, "OMPI_MCA_btl_tcp_if_exclude", "docker0", "the two exclude each other"},
		{SORT_SLINGSHOT, "FI_CXI_RDZV_PROTO", "alt_read", "--network=disable_rdzv_get"},
		{SORT_SLINGSHOT, "FI_CXI_RDZV_PROTO", "default", NULL},
		{SORT_SLINGSHOT, "MPICH_GPU_SUPPORT_ENABLED", "1", "may deadlock"},
		{SORT_SLINGSHOT, "MPICH_GPU_SUPPORT_ENABLED", "0", NULL},
		{SORT_SLINGSHOT, "NCCL_NET", "AWS Libfabric", NULL},
		{SORT_SLINGSHOT, "FI_PROVIDER", "efa", "FI_PROVIDER=efa on Slingshot"},
		{SORT_SLINGSHOT, "FI_PROVIDER", "cxi", NULL},
		{SORT_SLINGSHOT, "FI_MR_CACHE_MONITOR", "memhooks", "deadlocks"},
		{SORT_EFA, "FI_PROVIDER", "efa", NULL},
		{SORT_EFA, "RDMAV_FORK_SAFE", "1", "must not be set with EFA"},
		{SORT_TCP, "CUDA_DEVICE_ORDER", "FASTEST_FIRST", "do not follow"},
		{SORT_TCP, "MASTER_ADDR", "10.0.0.1", "use --master-addr to choose your own"},
		{SORT_TCP, "RANK", "3", "RANK=3: replaced by each rank's own values"},
		{SORT_TCP, "WORLD_SIZE", "8", "use berth exec"},
		{SORT_TCP, "LOCAL_RANK", "x", "LOCAL_RANK=x: replaced"},
		{SORT_TCP, "PATH", "/bin", NULL},
	};

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		struct job job;
		json_t *list;
		const char *text;

		job_start(&job, table[i].sort, 2);
		make_address(&job.inventories[0], "spare0", "10.99.0.1/16");
		for (int n = 0; n < 2; n++) {
			make_address(&job.inventories[n], "bond0",
				     n ? "10.97.0.2/16" : "10.97.0.1/16");
			make_address(&job.inventories[n], "bond0.7",
				     n ? "10.98.0.2/16" : "10.98.0.1/16");
		}
		set(&job, table[i].name, table[i].value);
		list = plan_lint(job.env, job.inventories, 2);
		text = json_string_value(json_array_get(list, 0));
		if (json_array_size(list) != (table[i].said ? 1 : 0) ||
		    (table[i].said && !strstr(text, table[i].said)))
			fail_msg("%s=%s: %zu warnings, first: %s", table[i].name, table[i].value,
				 json_array_size(list), text ? text : "(none)");
		json_decref(list);
		job_request_end(&job);
	}
}

/* On one node there is no fabric to set up. */
static void test_lint_one_node(void **state)
{
	struct job job;
	json_t *list;

	job_start(&job, SORT_SLINGSHOT, 1);
	set(&job, "NCCL_NET", "AWS Libfabric");
	set(&job, "NCCL_HOSTID", "gpu");
	set(&job, "OMPI_MCA_btl_tcp_if_exclude", "docker0");
	list = plan_lint(job.env, job.inventories, 1);
	assert_int_equal(json_array_size(list), 1);
	assert_non_null(strstr(json_string_value(json_array_get(list, 0)), "if it has no VNI"));
	json_decref(list);
	job_request_end(&job);
}

/* Each fabric has a profile that gives the source of its values. */
static void test_profiles(void **state)
{
	static const struct {
		enum nic_kind kind;
		const char *title, *part;
	} table[] = {
		{NIC_INFINIBAND, "InfiniBand", "verbs"},
		{NIC_ROCE, "RoCE", "verbs"},
		{NIC_SLINGSHOT, "Slingshot", "cxi"},
		{NIC_EFA, "EFA", "efa"},
		{NIC_ETHERNET, "Ethernet", "sockets"},
		{NIC_OTHER_FABRIC, "another fabric", "own"},
	};

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		const struct plan_fabric *fabric = plan_fabric(table[i].kind);

		assert_int_equal(fabric->kind, table[i].kind);
		assert_string_equal(fabric->title, table[i].title);
		assert_non_null(strstr(fabric->driven_by, table[i].part));
		assert_true(*fabric->settings && *fabric->source);
	}
}

/* Open MPI refuses an include list together with an exclude list, so only the user's is set. */
static void test_exclusion(void **state)
{
	struct job job;
	struct env *env;

	job_start(&job, SORT_IB, 2);
	set(&job, "OMPI_MCA_btl_tcp_if_exclude", "docker0");
	set(&job, "PRTE_MCA_prte_if_exclude", "docker0");
	job_plan(&job);
	env = rank_env(&job, 0, 0);
	expect(env, "OMPI_MCA_btl_tcp_if_include", NULL);
	expect(env, "PRTE_MCA_prte_if_include", NULL);
	/* Ranks only connect, to an address that they are given; and PMIx 5 calls it otherwise. */
	expect(env, "PMIX_MCA_ptl_base_if_include", NULL);
	expect(env, "OMPI_MCA_oob_tcp_if_include", "10.1.0.0/16");
	env_free(env);
	job_request_end(&job);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_identity),
		cmocka_unit_test(test_unknowns_follow_at_the_start),
		cmocka_unit_test(test_fabrics),
		cmocka_unit_test(test_conditions),
		cmocka_unit_test(test_nccl_is_the_nodes),
		cmocka_unit_test(test_one_node),
		cmocka_unit_test(test_provenance),
		cmocka_unit_test(test_users_threads_stay),
		cmocka_unit_test(test_own_gpus),
		cmocka_unit_test(test_other_vendors),
		cmocka_unit_test(test_prefix),
		cmocka_unit_test(test_ipv6),
		cmocka_unit_test(test_per_node),
		cmocka_unit_test(test_nodes_without_ranks),
		cmocka_unit_test(test_same_without_spares),
		cmocka_unit_test(test_lint),
		cmocka_unit_test(test_lint_one_node),
		cmocka_unit_test(test_profiles),
		cmocka_unit_test(test_exclusion),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
