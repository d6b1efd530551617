/* SPDX-License-Identifier: BSD-3-Clause */
/* Slurm's environments: captures (slurm/NAME.env, from Slurm 22.05 in tests/cluster), and the same
 * with variables changed, added or removed. */
#include "../../support/capture.h"
#include "../../support/files.h"
#include "../rows.h"

#include <time.h>
#include <unistd.h>

#include "alloc/alloc.h"
#include "alloc/query.h"
#include "alloc/slurm.h"
#include "base/json.h"

/* A captured environment with changes, which are separated by blanks. */
static struct env *captured(const char *name, const char *changes)
{
	char file[64];

	snprintf(file, sizeof file, "%s.env", name ? name : "");

	struct env *env = capture_env(name ? file : NULL);

	capture_change(env, changes, " ");
	return env;
}

static void good(void **state)
{
	static const struct {
		const char *file, *changes;
		const char *nodes;
		int this_node;
		const char *why; /* what the row tests */
	} rows[] = {
		{"two", NULL, "n1:2:4 n2:2:4", 0,
		 "a batch script; h200:4 gives the GPUs of all nodes"},
		{"plain", NULL, "n1:1:-1 n2:1:-1", 0, "only nodes"},
		{"plain",
		 "SLURM_TASKS_PER_NODE=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_JOB_CPUS_PER_NODE=4,2",
		 "n1:4:-1 n2:2:-1", 0, "a rank: the tasks are those of a step on fewer nodes"},
		{"uneven", NULL, "n1:3:-1 n2:1:-1 n3:1:-1", 0, "3,1(x2)"},
		{"excl", NULL, "n1:4:4 n2:2:-1 n3:4:-1", 0,
		 "exclusive: this node has more GPUs than SLURM_GPUS_PER_NODE, the others' are "
		 "unknown"},
		{"gpus", NULL, "n1:1:4 n2:1:-1", 0, "-G 6: known only for this node"},
		{"gres", NULL, "n2:1:2", 0, "--gres=gpu:2 -c 2 on one node"},
		{"gres", "SLURM_GPUS_ON_NODE", "n2:1:2", 0, "from SLURM_JOB_GPUS, 0,1"},
		{"gres", "SLURM_GPUS_ON_NODE SLURM_JOB_GPUS=0-3,7", "n2:1:5", 0, "ranges"},
		{"gres", "SLURM_GPUS_ON_NODE SLURM_JOB_GPUS", "n2:1:-1", 0, "GPUs unknown"},
		{"two", "SLURM_GPUS_PER_NODE=a100:2,v100:1 SLURM_GPUS_ON_NODE=3", "n1:2:3 n2:2:3",
		 0, "types are summed"},
		{"two", "SLURMD_NODENAME=n2 SLURM_GPUS_PER_NODE", "n1:2:-1 n2:2:4", 1,
		 "on the second node"},
		{"array", NULL, "n1:1:-1 n2:1:-1", 0, "a task of an array"},
		{"salloc", NULL, "n1:1:-1 n2:1:-1", -1, "salloc on the login node"},
		{"interactive", NULL, "n1:1:1 n2:1:-1", 0,
		 "salloc's shell on the first node is a special step: the job's variables apply"},
		{"interactive", "SLURM_STEP_ID=4294967291 SLURM_STEPID=4294967291",
		 "n1:1:1 n2:1:-1", 0, "the step ID of the batch script"},
		{"het", NULL, "n2:1:-1 n1:1:-1", 0, "the nodes of both groups"},
		{"het", "SLURM_HET_SIZE", "n2:1:-1 n1:1:-1", 0, "SLURM_PACK_SIZE alone"},
		{"het",
		 "SLURM_JOB_NODELIST_HET_GROUP_1=n[1,3] SLURM_TASKS_PER_NODE_HET_GROUP_1=2(x2)",
		 "n2:1:-1 n1:2:-1 n3:2:-1", 0, "several nodes in a group"},
		{"interactive", "SLURM_STEP_ID=-5 SLURM_STEPID=-5", "n1:1:1 n2:1:-1", 0,
		 "Slurm 26.05 writes it so"},
		{"step", NULL, "n1:2:4 n2:2:4", 1, "a task of a step"},
		{"step",
		 "SLURM_STEP_NODELIST=n2 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=2 "
		 "SLURM_STEP_TASKS_PER_NODE=2",
		 "n2:2:4", 0, "a step on one of the job's two nodes"},
		{"step", "SLURM_STEP_TASKS_PER_NODE=3,1", "n1:3:4 n2:1:4", 1,
		 "the step's counts precede the job's"},
		{"step", "SLURM_STEP_GPUS=1 SLURM_GPUS_ON_NODE=1", "n1:2:-1 n2:2:1", 1,
		 "a step with fewer GPUs than the job"},
		{"step-uneven", NULL, "n1:1:2 n2:1:2", 1, "the job has 3,1 and the step 1(x2)"},
		{"plain", "SLURM_JOB_ID", "n1:1:-1 n2:1:-1", 0, "only SLURM_JOBID"},
		{"plain", "SLURM_JOBID", "n1:1:-1 n2:1:-1", 0, "only SLURM_JOB_ID"},
		{"plain", "SLURM_JOB_NODELIST", "n1:1:-1 n2:1:-1", 0, "only SLURM_NODELIST"},
		{"plain", "SLURM_TASKS_PER_NODE=4(x2),2(x7)", "n1:4:-1 n2:4:-1", 0,
		 "more counts than nodes: nodes were released"},
		{"plain", "SLURM_TASKS_PER_NODE", "n1:1:-1 n2:1:-1", 0,
		 "SLURM_JOB_CPUS_PER_NODE if there are no tasks"},
		{"plain", "SLURM_TASKS_PER_NODE SLURM_JOB_CPUS_PER_NODE", "n1:0:-1 n2:0:-1", 0,
		 "slots unknown"},
		{"plain", "SLURM_HOSTFILE=/home/u/hosts", "n1:1:-1 n2:1:-1", 0,
		 "without the distribution, Slurm does not read it"},
		{"step", "SLURM_DISTRIBUTION=arbitrary SLURM_HOSTFILE=/home/u/hosts",
		 "n1:2:4 n2:2:4", 1, "srun has placed the tasks"},
		{"plain", "SLURM_HET_SIZE=1", "n1:1:-1 n2:1:-1", 0, "one component"},
		{NULL,
		 "SLURM_JOB_ID=9 SLURM_JOB_NODELIST=x[0-1]b[0-1] SLURM_TASKS_PER_NODE=2(x3),1",
		 "x0b0:2:-1 x0b1:2:-1 x1b0:2:-1 x1b1:1:-1", -1, "2(x3),1 and two brackets"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct env *env = captured(rows[i].file, rows[i].changes);
		struct alloc alloc = {0};
		struct error err = {0};

		if (alloc_read(env, NULL, &alloc, &err))
			fail_msg("%s: %s", rows[i].why, err.text);
		if (strcmp(capture_nodes(&alloc), rows[i].nodes) ||
		    alloc.this_node != rows[i].this_node)
			fail_msg("%s: %s, this is node %d", rows[i].why, capture_nodes(&alloc),
				 alloc.this_node);
		assert_int_equal(alloc.source, ALLOC_FROM_SLURM);
		assert_true(alloc.why && *alloc.why && alloc.end_time == 0);
		alloc_free(&alloc);
		env_free(env);
	}
}

static void bad(void **state)
{
	static const struct {
		const char *file, *changes;
		int rc;
		const char *said, *and; /* what err must contain */
	} rows[] = {
		{"het", "SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n2", -ERR_USAGE, "SLURM_HET_SIZE is 2",
		 "without srun"},
		{"het", "SLURM_TASKS_PER_NODE_HET_GROUP_1", -ERR_DATA, "SLURM_HET_SIZE is 2",
		 "SLURM_TASKS_PER_NODE_HET_GROUP_1 is not set"},
		{"het", "SLURM_HET_SIZE=3", -ERR_DATA, "SLURM_HET_SIZE is 3",
		 "SLURM_JOB_NODELIST_HET_GROUP_2 is not set"},
		{"het", "SLURM_JOB_NODELIST_HET_GROUP_1=n[", -ERR_DATA,
		 "SLURM_JOB_NODELIST_HET_GROUP_*", "n["},
		{"het", "SLURM_JOB_NODELIST_HET_GROUP_1=n2", -ERR_DATA, "'n2,n2'", "twice"},
		{"het", "SLURM_TASKS_PER_NODE_HET_GROUP_1=x", -ERR_DATA,
		 "SLURM_TASKS_PER_NODE_HET_GROUP_*", "x"},
		{"het", "SLURMD_NODENAME=n3", -ERR_DATA, "SLURMD_NODENAME is 'n3'", "'n2,n1'"},
		{"plain", "SLURM_DISTRIBUTION=arbitrary SLURM_HOSTFILE=/home/u/hosts", -ERR_USAGE,
		 "SLURM_DISTRIBUTION is 'arbitrary'", "/home/u/hosts"},
		{"plain", "SLURM_HET_SIZE=two", -ERR_DATA, "SLURM_HET_SIZE", "two"},
		{"plain", "SLURM_JOB_ID=7", -ERR_DATA, "SLURM_JOBID", "'7'"},
		{"plain", "SLURM_JOB_ID=7x SLURM_JOBID", -ERR_DATA, "SLURM_JOB_ID", "7x"},
		{"plain", "SLURM_JOB_ID=0 SLURM_JOBID", -ERR_DATA, "SLURM_JOB_ID", "0"},
		{"plain", "SLURM_JOB_NODELIST SLURM_NODELIST", -ERR_DATA, "SLURM_JOB_NODELIST",
		 "or unset SLURM_JOB_ID"},
		{"plain", "SLURM_JOB_NODELIST=n[1", -ERR_DATA, "SLURM_JOB_NODELIST", "n[1"},
		{"plain", "SLURM_JOB_NODELIST=n1,n1", -ERR_DATA, "SLURM_JOB_NODELIST", "n1 twice"},
		{"plain", "SLURM_JOB_NODELIST=n[1-3]", -ERR_DATA, "SLURM_JOB_NUM_NODES is 2",
		 "n[1-3]"},
		{"plain", "SLURM_JOB_NUM_NODES=3", -ERR_DATA, "SLURM_JOB_NUM_NODES is 3", "n[1-2]"},
		{"plain", "SLURM_JOB_NUM_NODES SLURM_NNODES=0", -ERR_DATA, "SLURM_NNODES", "0"},
		{"plain", "SLURMD_NODENAME=n7", -ERR_DATA, "SLURMD_NODENAME is 'n7'", "n[1-2]"},
		{"plain", "SLURM_TASKS_PER_NODE=1", -ERR_DATA, "SLURM_TASKS_PER_NODE",
		 "has counts for 1 node,"},
		{"plain", "SLURM_TASKS_PER_NODE=2(x", -ERR_DATA, "SLURM_TASKS_PER_NODE", "2(x"},
		{"plain", "SLURM_TASKS_PER_NODE=2(x0)", -ERR_DATA, "SLURM_TASKS_PER_NODE", "(x0)"},
		{"plain", "SLURM_TASKS_PER_NODE=2(x2", -ERR_DATA, "SLURM_TASKS_PER_NODE", "2(x2"},
		{"plain", "SLURM_TASKS_PER_NODE=2,", -ERR_DATA, "SLURM_TASKS_PER_NODE", "2,"},
		{"plain", "SLURM_TASKS_PER_NODE=2,,1", -ERR_DATA, "SLURM_TASKS_PER_NODE", ",,"},
		{"plain", "SLURM_TASKS_PER_NODE=-2(x2)", -ERR_DATA, "SLURM_TASKS_PER_NODE", "-2"},
		{"plain", "SLURM_TASKS_PER_NODE=2(x2)1", -ERR_DATA, "SLURM_TASKS_PER_NODE", ")1"},
		{"plain", "SLURM_TASKS_PER_NODE=2(x999999999999)", -ERR_DATA,
		 "SLURM_TASKS_PER_NODE", "999"},
		{"plain", "SLURM_TASKS_PER_NODE=99999999(x2)", -ERR_DATA, "SLURM_TASKS_PER_NODE",
		 "999"},
		{"two", "SLURM_GPUS_PER_NODE=a100:", -ERR_DATA, "SLURM_GPUS_PER_NODE", "a100:"},
		{"two", "SLURM_GPUS_PER_NODE=:4", -ERR_DATA, "SLURM_GPUS_PER_NODE", ":4"},
		{"two", "SLURM_GPUS_PER_NODE=a100", -ERR_DATA, "SLURM_GPUS_PER_NODE", "a100"},
		{"two", "SLURM_GPUS_PER_NODE=4,", -ERR_DATA, "SLURM_GPUS_PER_NODE", "4,"},
		{"two", "SLURM_GPUS_PER_NODE=9999999", -ERR_DATA, "SLURM_GPUS_PER_NODE", "9999999"},
		{"two", "SLURM_GPUS_ON_NODE=many", -ERR_DATA, "SLURM_GPUS_ON_NODE", "many"},
		{"two", "SLURM_GPUS_ON_NODE SLURM_JOB_GPUS=0,0", -ERR_DATA, "SLURM_JOB_GPUS",
		 "0,0"},
		{"step", "SLURM_GPUS_ON_NODE SLURM_STEP_GPUS=x", -ERR_DATA, "SLURM_STEP_GPUS", "x"},
		{"step", "SLURM_STEP_NODELIST", -ERR_DATA, "SLURM_STEP_NODELIST", "not"},
		{"step", "SLURM_STEP_NUM_NODES=1", -ERR_DATA, "SLURM_STEP_NUM_NODES is 1",
		 "n[1-2]"},
		{"step", "SLURM_STEP_NUM_TASKS=5", -ERR_DATA, "SLURM_STEP_NUM_TASKS is 5", "2(x2)"},
		{"step", "SLURM_STEP_NODELIST=n1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=2",
		 -ERR_DATA, "SLURMD_NODENAME is 'n2'", "'n1'"},
		{"array", "SLURM_ARRAY_TASK_ID", -ERR_DATA, "SLURM_ARRAY_TASK_ID", "not set"},
		{"array", "SLURM_ARRAY_TASK_ID=a", -ERR_DATA, "SLURM_ARRAY_TASK_ID", "\"a\""},
		{"plain", "SLURM_RESTART_COUNT=-1", -ERR_DATA, "SLURM_RESTART_COUNT", "-1"},
		{"plain", "SLURM_JOB_END_TIME=soon", -ERR_DATA, "SLURM_JOB_END_TIME", "soon"},
		{"plain", "SLURM_JOB_END_TIME=4611686018427387903", -ERR_DATA, "SLURM_JOB_END_TIME",
		 "253402300799"},
		{"plain", "SLURM_STEP_ID=abc", -ERR_DATA, "SLURM_STEP_ID", "\"abc\""},
		{"plain", "SLURM_STEP_ID=-17", -ERR_DATA, "SLURM_STEP_ID", "\"-17\""},
		{"plain", "SLURM_STEP_ID=99999999999999999999", -ERR_DATA, "SLURM_STEP_ID",
		 "99999999"},
		{"plain", "SLURM_JOB_NUM_NODES=2\nberth:", -ERR_DATA, "SLURM_JOB_NUM_NODES",
		 "'2?berth:'"},
		{"plain", "SLURM_JOB_NODELIST=n1\nn2", -ERR_DATA, "SLURM_JOB_NODELIST", "'n1?n2'"},
		{"plain", "SLURM_TASKS_PER_NODE=2(x2)\033[2J", -ERR_DATA, "SLURM_TASKS_PER_NODE",
		 "'2(x2)?[2J'"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct env *env = captured(rows[i].file, rows[i].changes);
		struct alloc alloc = {0};
		struct error err = {0};
		int rc = alloc_read(env, NULL, &alloc, &err);

		if (rc != rows[i].rc || alloc.nodes || !strstr(err.text, rows[i].said) ||
		    !strstr(err.text, rows[i].and))
			fail_msg("%s with %s: %d, '%s'", rows[i].file, rows[i].changes, rc,
				 err.text);
		alloc_free(&alloc);
		env_free(env);
	}
}

static void job(void **state)
{
	struct env *env = captured("array", "SLURM_JOB_END_TIME=4102444800 SLURM_RESTART_COUNT=3");
	struct alloc alloc = {0};

	assert_int_equal(alloc_read(env, NULL, &alloc, NULL), 0);
	assert_string_equal(alloc.job_id, env_get(env, "SLURM_JOB_ID"));
	assert_string_equal(alloc.array_task, "8_3");
	assert_int_equal(alloc.end_time, 4102444800);
	assert_string_equal(alloc.end_reason, "SLURM_JOB_END_TIME");
	assert_int_equal(alloc.restarts, 3);
	assert_int_equal(alloc.this_node, 0);
	alloc_free(&alloc);
	env_free(env);
}

static void whose(void **state)
{
	static const struct {
		const char *file;
		bool in_step;
	} rows[] = {{"two", false},    {"step", true}, {"interactive", false},
		    {"salloc", false}, {"het", false}, {"step-uneven", true}};
	struct alloc_request by_hand = {"a,b", NULL};
	struct env *env = captured("two", NULL), *none = captured(NULL, "SLURM_JOB_ID=");
	struct alloc alloc = {0};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct env *one = captured(rows[i].file, NULL);

		assert_int_equal(slurm_in_step(one), rows[i].in_step);
		env_free(one);
	}
	assert_int_equal(alloc_read(env, &by_hand, &alloc, NULL), 0);
	assert_int_equal(alloc.source, ALLOC_FROM_HOSTS); /* the user's hosts come first */
	alloc_free(&alloc);
	assert_int_equal(alloc_read(none, NULL, &alloc, NULL), 0);
	assert_int_equal(alloc.source, ALLOC_FROM_LOCAL); /* an empty variable counts as unset */
	alloc_free(&alloc);
	env_free(env);
	env_free(none);
}

/* In "step", both tasks of a node see all four GPUs of SLURM_GPUS_ON_NODE and SLURM_STEP_GPUS. */
static void gpus_apart(void **state)
{
	static const struct {
		const char *file, *settings;
		int tasks;
		const char *words; /* NULL: no warning */
		const char *why;
	} rows[] = {
		{"step", NULL, 2, NULL, "each task sees all GPUs"},
		{"step", "CUDA_VISIBLE_DEVICES=1 SLURM_STEP_GPUS=1 SLURMD_TRES_BIND=gpu:per_task:1",
		 2,
		 "CUDA_VISIBLE_DEVICES is 1 in this task, while SLURM_GPUS_ON_NODE is 4 "
		 "(SLURMD_TRES_BIND is gpu:per_task:1): each of the 2 tasks on this node sees only "
		 "1 "
		 "of its 4 ",
		 "--gpus-per-task=1, as Slurm 22.05 sets it"},
		{"step",
		 "CUDA_VISIBLE_DEVICES=0 SLURM_STEP_GPUS=0 SLURMD_TRES_BIND=gpu:single:1 "
		 "SLURM_GPUS_ON_NODE=2",
		 2, "while SLURM_GPUS_ON_NODE is 2 (SLURMD_TRES_BIND is gpu:single:1)",
		 "--gpu-bind=single:1"},
		{"step", "CUDA_VISIBLE_DEVICES=0 SLURM_GPUS_ON_NODE", 2,
		 "while SLURM_STEP_GPUS is 0,1,2,3: each",
		 "ordinals inside the cgroup, and the step's list"},
		{"step", "CUDA_VISIBLE_DEVICES=GPU-12,GPU-34", 2, "sees only 2 of its 4 ", "UUIDs"},
		{"step",
		 "CUDA_VISIBLE_DEVICES=0,1 SLURM_GPUS_ON_NODE SLURM_STEP_GPUS "
		 "SLURM_GPUS_PER_TASK=h200:2",
		 2,
		 "in this task (SLURM_GPUS_PER_TASK is h200:2): each of the 2 tasks on this node "
		 "sees only 2 of its 4 ",
		 "only the option's variable is set"},
		{"step",
		 "CUDA_VISIBLE_DEVICES=1 SLURM_GPUS_ON_NODE SLURM_STEP_GPUS=1 "
		 "SLURM_TRES_PER_TASK=cpu:2,gres/gpu:1",
		 2, "(SLURM_TRES_PER_TASK is cpu:2,gres/gpu:1)", "later Slurms"},
		{"step", "SLURM_TRES_PER_TASK=cpu:2", 2, NULL, "only cores are bound"},
		{"step", "CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES=2", 2,
		 "ROCR_VISIBLE_DEVICES is 2 in", "another vendor's variable"},
		{"step", "CUDA_VISIBLE_DEVICES=1 SLURM_STEP_GPUS=1", 1, NULL,
		 "the only task on its node"},
		{"step",
		 "CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES GPU_DEVICE_ORDINAL ZE_AFFINITY_MASK "
		 "SLURM_STEP_GPUS SLURMD_TRES_BIND=gpu:none SLURM_GPUS_PER_TASK=1",
		 2, NULL, "--gpu-bind=none cancels it"},
		{"step", "CUDA_VISIBLE_DEVICES=NoDevFiles SLURM_GPUS_ON_NODE=0", 2, NULL,
		 "no GPUs"},
		{"step", "CUDA_VISIBLE_DEVICES=-1", 2, NULL, "the user wants no GPU"},
		{"step", "SLURM_GPUS_ON_NODE=many SLURM_STEP_GPUS=x", 2, NULL,
		 "invalid values: alloc reports them"},
		{"two", "CUDA_VISIBLE_DEVICES=0", 2, NULL, "a batch script has no other tasks"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct env *env = captured(rows[i].file, rows[i].settings);
		char text[SLURM_ISOLATION_MAX] = "";
		bool isolation = slurm_gpus_isolated(env, rows[i].tasks, text, sizeof text);

		if (isolation != (rows[i].words != NULL) ||
		    (isolation && !strstr(text, rows[i].words)))
			fail_msg("row %zu, %s: '%s'", i, rows[i].why, text);
		if (isolation && !strstr(text, "=4 --gpu-bind=none") &&
		    !strstr(text, "=2 --gpu-bind=none"))
			fail_msg("row %zu, %s: no advice in '%s'", i, rows[i].why, text);
		env_free(env);
	}
}

static void time_left(void **state)
{
	static const struct {
		const char *text;
		int rc;
		long seconds;
	} rows[] = {
		{"57", 0, 57},
		{"9:57", 0, 597},
		{"1:09:57", 0, 4197},
		{"0:00", 0, 0},
		{"1-02:00:00\n", 0, 93600},
		{"  10:00 \n", 0, 600},
		{"UNLIMITED", 1, 0},
		{"NOT_SET", 1, 0},
		{"INVALID", -ERR_DATA, 0},
		{"", -ERR_DATA, 0},
		{"1-02:00", -ERR_DATA, 0},
		{"1:60", -ERR_DATA, 0},
		{":5", -ERR_DATA, 0},
		{"1:2:3:4", -ERR_DATA, 0},
		{"-5", -ERR_DATA, 0},
		{"5 6", -ERR_DATA, 0},
		{"99999999-00:00:00", -ERR_DATA, 0},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		int64_t seconds = 0;
		int rc = slurm_time_left(rows[i].text, &seconds, NULL);

		if (rc != rows[i].rc || seconds != rows[i].seconds)
			fail_msg("'%s': %d, %ld", rows[i].text, rc, (long)seconds);
	}
}

static void job_gpus(void **state)
{
	static const struct {
		const char *text;
		const char *nodes;
	} rows[] = {
		{"JobId=1 NodeList=n[1-2] GRES=gpu:h200:5 Nodes=n1 CPU_IDs=0 Mem=100 "
		 "GRES=gpu:h200:4(IDX:0-3) Nodes=n2 CPU_IDs=0 Mem=100 GRES=gpu:h200:1(IDX:0) "
		 "MinCPUsNode=1\n",
		 "n1:1:4 n2:1:1"}, /* printed by Slurm 22.05 for -G 5 */
		{"JobId=1 Nodes=n[1-2] CPU_IDs=0 Mem=100 GRES=gpu:2(IDX:1,3),shard:5(IDX:0),"
		 "gpu:a100:3(IDX:4-6) X=1",
		 "n1:1:5 n2:1:5"},
		{"JobId=1 Nodes=n2 CPU_IDs=0 Mem=100 GRES= Nodes=n3 GRES=gpu:1(IDX:0)",
		 "n1:1:-1 n2:1:0"},
		{"JobId=1 Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:x(IDX:0) Nodes=n2 Mem=0",
		 "n1:1:0 n2:1:-1"},
		{"JobId=1 Nodes=n[1 GRES=gpu:1", "n1:1:-1 n2:1:-1"},
		{"JobId=1 Nodes=n1 GRES=gpu:(IDX:0", "n1:1:0 n2:1:-1"},
		{"JobId=1 Nodes=n1 GRES=gpu:99999999999999999999", "n1:1:0 n2:1:-1"},
		{" Nodes=", "n1:1:-1 n2:1:-1"},
		{"", "n1:1:-1 n2:1:-1"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct env *env = captured("plain", NULL);
		struct alloc alloc = {0};

		assert_int_equal(alloc_read(env, NULL, &alloc, NULL), 0);
		slurm_job_gpus(rows[i].text, &alloc);
		assert_string_equal(capture_nodes(&alloc), rows[i].nodes);
		alloc_free(&alloc);
		env_free(env);
	}
}

/* The batch script is asked for with --max-restarts only. */
static void limits(void **state)
{
	static const struct {
		const char *config;
		int kill_wait_ms;
		bool hangs; /* when it is asked about the job, which comes first */
	} rows[] = {
		{"KillOnBadExit           = 0\nKillWait                = 5 sec\n", 5000},
		{"XKillWait = 7 sec\n", 30000},
		{"KillWait = 0 sec\n", 30000},
		{"KillWait = soon\n", 30000},
		{"KillWait = 99999999 sec\n", 30000},
		{"", 30000},
		{"KillWait = 5 sec\n", 30000, true},
	};
	char dir[] = "/tmp/berth-test-scontrol-XXXXXX", path[64], text[600];

	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/scontrol", dir);
	snprintf(text, sizeof text, "%s:/bin:/usr/bin", dir);

	char *before = strdup(getenv("PATH"));

	setenv("PATH", text, 1);
	for (size_t i = 0; i < ROWS(rows); i++) {
		struct env *env = captured("plain", "SLURM_JOB_ID=3 SLURM_JOBID=3");
		struct alloc alloc = {0};
		struct alloc_query query;

		snprintf(text, sizeof text,
			 "#!/bin/sh\ncase \"$*\" in\n'show config') printf '%s' ;;\n"
			 "'write batch_script 3 -') echo '#!/bin/sh' ;;\n*) %s ;;\nesac\n",
			 rows[i].config, rows[i].hangs ? "exec sleep 60" : "exit 1");
		write_text(path, text, 0755);
		assert_int_equal(alloc_read(env, NULL, &alloc, NULL), 0);
		alloc_query_begin(&query, env, &alloc,
				  ALLOC_QUERY_KILL_WAIT | (i ? ALLOC_QUERY_SCRIPT : 0),
				  rows[i].hangs ? 300 : 10000);
		assert_int_equal(query.kill_wait_ms, 30000);
		alloc_query_wait(&query, 30000, false);
		assert_int_equal(query.kill_wait_ms, rows[i].kill_wait_ms);
		assert_int_equal(query.script != NULL, i > 0 && !rows[i].hangs);
		alloc_query_end(&query);
		alloc_free(&alloc);
		env_free(env);
	}
	setenv("PATH", before, 1);
	free(before);
	unlink(path);
	rmdir(dir);
}

static void ask(const struct env *env, int timeout_ms, struct alloc *alloc)
{
	struct alloc_query query;

	alloc_query_begin(&query, env, alloc, 0, timeout_ms);
	alloc_query_wait(&query, timeout_ms, false);
	alloc_query_end(&query);
}

/* scontrol answers, fails, hangs, or is missing. */
static void asked(void **state)
{
	static const struct {
		const char *script;
		long left; /* -1: unknown */
		const char *why;
	} rows[] = {
		{"[ \"$*\" = '-d -o show job 3' ] && echo 'JobId=3 JobName=a JobState=RUNNING "
		 "RunTime=00:08:00 TimeLimit=00:10:00'",
		 120, "scontrol: 120 s left"},
		{"echo 'JobId=2 JobState=RUNNING RunTime=00:00:01 TimeLimit=1-00:00:00'; echo "
		 "'JobId=3 JobName=a TimeLimit=9 JobState=RUNNING RunTime=00:08:00 "
		 "TimeLimit=00:10:00'",
		 120, "scontrol: 120 s left"},
		{"echo JobId=3 JobState=RUNNING RunTime=00:00:01 TimeLimit=UNLIMITED", -1,
		 "no time limit"},
		{"echo JobId=3 JobState=RUNNING RunTime=00:00:01 TimeLimit=x", -1,
		 "does not report the time left"},
		{"echo JobId=33 JobState=RUNNING RunTime=00:08:00 TimeLimit=00:10:00", -1,
		 "does not report the job: its output is empty"},
		{"echo what >&2; exit 1", -1, "does not report the job: what"},
		{"exec sleep 60", -1, "did not answer within 300 ms"},
		{"yes", -1, "does not report the job"},
		{NULL, -1, "scontrol cannot be started"},
	};
	char dir[] = "/tmp/berth-test-scontrol-XXXXXX", path[64];

	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/scontrol", dir);
	for (size_t i = 0; i < ROWS(rows); i++) {
		struct env *env = captured("plain", "SLURM_JOB_ID=3 SLURM_JOBID=3");
		struct alloc alloc = {0};
		char *before = strdup(getenv("PATH")), all[4096];
		time_t now = time(NULL);

		unlink(path);
		snprintf(all, sizeof all, "#!/bin/sh\n%s\n", rows[i].script);
		if (rows[i].script)
			write_text(path, all, 0755);
		/* The scripts need /bin; the last row has an empty directory, so no scontrol. */
		snprintf(all, sizeof all, "%s%s", dir, rows[i].script ? ":/bin:/usr/bin" : "");
		setenv("PATH", all, 1);
		env_set(env, "PATH", all, ENV_FROM_USER, NULL, NULL);
		assert_int_equal(alloc_read(env, NULL, &alloc, NULL), 0);
		/* Only one script is slow by itself; others may be on a busy machine. */
		ask(env, strstr(rows[i].why, "300 ms") ? 300 : 10000, &alloc);
		setenv("PATH", before, 1);
		free(before);
		if (!alloc.end_reason || !strstr(alloc.end_reason, rows[i].why))
			fail_msg("row %zu: %s", i, alloc.end_reason);
		if (rows[i].left < 0)
			assert_int_equal(alloc.end_time, 0);
		else
			assert_in_range(alloc.end_time - now, rows[i].left, rows[i].left + 10);
		alloc_free(&alloc);
		env_free(env);
	}
	unlink(path);
	rmdir(dir);
}

/* What is known about --no-kill; the message never says that the job was submitted without it. */
static void lost_node(void **state)
{
#define JOB "JobId=3 JobName=a SubmitLine=b --no-kill  JobState=RUNNING Requeue=1 Command=/a/j.sh"
	static const struct {
		const char *job, *config, *script, *text;
	} rows[] = {
		{.script = "#!/bin/sh\n#SBATCH -N2 --no-kill\n", .text = "Slurm lets it continue"},
		{.job = JOB " WorkDir=/a",
		 .script = "#!/bin/sh\n#SBATCH -k\n",
		 .text = "Slurm lets it continue"},
		{.job = JOB " SubmitLine=sbatch -N2 --no-kill j.sh WorkDir=/a",
		 .script = "#!/bin/sh\n",
		 .text = "Slurm lets it continue"},
		{.job = "JobId=3 JobState=RUNNING Requeue=0 SubmitLine=salloc --no-kill WorkDir=/a",
		 .text = "Slurm lets it continue"},
		{.job = JOB " WorkDir=/a",
		 .config = "SlurmdTimeout           = 300 sec\n",
		 .script = "#!/bin/sh\n",
		 .text = "when a node of this job fails, Slurm requeues the job as soon as it "
			 "marks the node down (after 300 s), unless the job was submitted with "
			 "--no-kill; berth cannot tell whether it was. To be sure, add #SBATCH "
			 "--no-kill to the job script"},
		{.job = JOB " SubmitLine=sbatch --no-kill=off j.sh WorkDir=/a",
		 .script = "#!/bin/sh\n",
		 .text = "cannot tell whether it was"},
		{.job = JOB " SubmitLine=sbatch j.sh -k WorkDir=/a",
		 .script = "#!/bin/sh\n",
		 .text = "cannot tell whether it was"}, /* -k is the script's own */
		{.text = "Slurm ends the job as soon as it marks the node down, unless the job was "
			 "submitted with --no-kill; berth cannot tell whether it was. To be sure, "
			 "submit the job with --no-kill"},
	};

	(void)state;
	for (size_t i = 0; i < ROWS(rows); i++) {
		char text[400];
		bool continues = slurm_lost_node_policy(rows[i].job, rows[i].config, rows[i].script,
							text, sizeof text);

		if (!strstr(text, rows[i].text) || continues != !strstr(text, "cannot tell"))
			fail_msg("row %zu: %s", i, text);
	}
}

/* A warning only if the output will surely be lost. */
static void requeue_truncates(void **state)
{
#define OUT "JobId=3 JobName= StdOut=/b JobState=RUNNING StdOut=/a/slurm-3.out Power="
#define CONFIG "JobCompType = none\nJobFileAppend           = "
	static const struct {
		const char *mode, *job, *config;
		bool truncates;
	} rows[] = {
		{.job = OUT, .config = CONFIG "0\n", .truncates = true}, /* Slurm's default */
		{.job = OUT, .config = CONFIG "1\n", .truncates = false},
		{.mode = "a", .job = OUT, .config = CONFIG "0\n", .truncates = false},
		{.mode = "t", .job = OUT, .config = CONFIG "1\n", .truncates = true},
		{.mode = "x", .job = OUT, .config = CONFIG "0\n", .truncates = false},
		{.job = OUT, .config = "JobCompType = none\n", .truncates = false},
		{.job = OUT, .config = CONFIG "?\n", .truncates = false},
		{.job = OUT, .truncates = false},
		{.config = CONFIG "0\n", .truncates = false},
		{.job = "JobId=3 JobState=RUNNING StdOut=/dev/null",
		 .config = CONFIG "0\n",
		 .truncates = false},
		{.job = "JobId=3 JobState=RUNNING", .config = CONFIG "0\n", .truncates = false},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct env *env = env_new();
		char text[600] = "";

		assert_non_null(env);
		if (rows[i].mode)
			assert_int_equal(env_set(env, "SLURM_OPEN_MODE", rows[i].mode,
						 ENV_FROM_USER, NULL, NULL),
					 0);
		if (slurm_requeue_truncates(env, rows[i].job, rows[i].config, text, sizeof text) !=
			    rows[i].truncates ||
		    (rows[i].truncates && !strstr(text, " truncate /a/slurm-3.out when ")))
			fail_msg("row %zu: %s", i, text);
		env_free(env);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(good),
		cmocka_unit_test(bad),
		cmocka_unit_test(job),
		cmocka_unit_test(whose),
		cmocka_unit_test(gpus_apart),
		cmocka_unit_test(time_left),
		cmocka_unit_test(job_gpus),
		cmocka_unit_test(asked),
		cmocka_unit_test(limits),
		cmocka_unit_test(lost_node),
		cmocka_unit_test(requeue_truncates),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
