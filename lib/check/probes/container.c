/* SPDX-License-Identifier: BSD-3-Clause */
/* --container: does a container start here, and does what the image has fit the node? */
#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/scheduler_tool.h"
#include "base/bytes.h"
#include "base/json.h"
#include "check/check_internal.h"
#include "container/container.h"
#include "image.h" /* generated: file_text, from image.sh */

#define START_MS 12000
#define ANSWER_BYTES 8192

static json_t *failed(const char *text)
{
	return json_pack("{s:o}", "error", json_text(text));
}

/* What image.sh has printed, as an object. The first value of a name counts. NULL if its end is
 * missing. */
static json_t *read_lines(char *text)
{
	json_t *out = json_object();
	char *value, *rest = NULL;

	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		value = strchr(line, '=');
		if (!value)
			continue;
		*value++ = '\0';
		if (!json_object_get(out, line))
			json_object_set_new(out, line, json_text(value));
	}
	if (json_object_get(out, "end"))
		return out;
	json_decref(out);
	return NULL;
}

/* Start a container as a rank's. */
static json_t *look_inside(const struct prober *prober, const struct container *container,
			   const char *cwd)
{
	static const char *const program[] = {"sh", "-c", file_text, NULL};
	char name[64], *shown;
	struct words places = {0};
	struct env *env = env_copy(prober->env);
	struct container_start start = {
		.dir = cwd, .cwd = cwd, .name = name, .env = env, .argv = program};
	struct scheduler_tool_output output = {0};
	enum scheduler_tool_result result = SCHEDULER_TOOL_UNAVAILABLE;
	json_t *out = NULL;
	char **argv;

	snprintf(name, sizeof name, "berth-%.32s-%zu", prober->token, prober->node_index);
	for (size_t i = 0; i < container->bind_count + container->offer_count; i++) {
		size_t size, offer = i - container->bind_count;
		const char *bind =
			i < container->bind_count ? container->binds[i] : container->offers[offer];
		const char *place = container_bind_target(bind, &size);

		words_add(&places, "%.*s", (int)size, place);
	}
	shown = words_join(&places, ':');
	if (env && shown)
		env_set(env, "BERTH_SHOWN", shown, ENV_FROM_BERTH, NULL, NULL);
	free(shown);
	argv = env ? container_command(container, &start) : NULL;
	if (argv && !container_environment(container, env, NULL))
		result = scheduler_tool_run(argv, env, START_MS, ANSWER_BYTES, &output);
	if (result == SCHEDULER_TOOL_EXITED)
		out = read_lines(output.text);
	if (!out)
		out = failed(result == SCHEDULER_TOOL_TIMEOUT  ? "it did not start within 12 s"
			     : result == SCHEDULER_TOOL_EXITED ? output.stderr_text
							       : "its runtime does not start");
	free(output.text);
	free(argv);
	env_free(env);
	return out;
}

static json_t *collect(const struct prober *prober)
{
	const json_t *json = json_object_get(prober->begin, "container");
	struct container container = {0};
	struct error err = {0};
	char *cwd = getcwd(NULL, 0);
	json_t *out;

	if (!json)
		out = json_object();
	else if (container_from_json(json, &container, &err) ||
		 container_check(&container, cwd ? cwd : "/", &err))
		out = failed(err.text);
	else
		out = look_inside(prober, &container, cwd ? cwd : "/");
	container_free(&container);
	free(cwd);
	return out;
}

/* ---- in the controller ---- */

static int cuda_of_driver(const json_t *versions)
{
	int cuda;

	return sscanf(check_text(versions, "CUDA of the driver"), "%d", &cuda) == 1
		       ? cuda
		       : container_cuda_of_driver(check_text(versions, "driver"));
}

static bool has_nic(const struct inventory *inventory, enum nic_kind one, enum nic_kind other)
{
	for (size_t n = 0; n < inventory->nic_count; n++)
		if (!inventory->nics[n].management &&
		    (inventory->nics[n].kind == one || inventory->nics[n].kind == other))
			return true;
	return false;
}

/* "glibc 2.41 (2.36 outside), CUDA 12.8, PyTorch 2.9.0" */
static void describe_image(const json_t *answer, char *text, size_t size)
{
	static const char *const names[] = {"glibc", "CUDA", "NCCL", "PyTorch", "JAX"};
	const char *mpi = check_text(answer, "MPI");

	for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
		const char *value = check_text(answer, names[k]);

		if (*value)
			text_append(text, size, "%s%s %s", *text ? ", " : "", names[k], value);
		if (!k && *value)
			text_append(text, size, " (%s outside)", gnu_get_libc_version());
	}
	text_append(text, size, "%s%s", *text && *mpi ? ", " : "",
		    *text || *mpi ? mpi : "it starts");
}

static void judge_image(struct check *check, size_t i, const json_t *answer)
{
	const struct inventory *inventory = &check->inventories[i];
	const char *cuda = check_text(answer, "CUDA");
	int needed = 0, driver = cuda_of_driver(check_answer(check, i, "versions"));
	const json_t *other = check_answer(check, 0, "container");
	char text[512] = "", first[512] = "";
	bool fault = true;

	sscanf(cuda, "%d", &needed);
	describe_image(answer, text, sizeof text);
	describe_image(other, first, sizeof first);
	if (driver && needed > driver && !*check_text(answer, "compat"))
		check_add(check, i, "container", CHECK_FAULT,
			  "use an image with an older CUDA, or one with NVIDIA's cuda-compat",
			  "the image has CUDA %s, and the driver here is for CUDA %d", cuda,
			  driver);
	else if (inventory->gpu_count && !*check_text(answer, "libibverbs.so.1") &&
		 has_nic(inventory, NIC_INFINIBAND, NIC_ROCE))
		check_add(
			check, i, "container", CHECK_FAULT,
			"add libibverbs to the image (Debian: libibverbs1 and ibverbs-providers), "
			"or show the host's with --bind",
			"the image has no libibverbs.so.1: NCCL would silently use TCP, which is "
			"many times slower");
	else if (inventory->gpu_count && !*check_text(answer, "libnccl-net") &&
		 has_nic(inventory, NIC_SLINGSHOT, NIC_EFA))
		check_add(
			check, i, "container", CHECK_FAULT,
			"add aws-ofi-nccl to the image, or show the host's with --bind and set "
			"LD_LIBRARY_PATH with --env",
			"the image has no aws-ofi-nccl plug-in: NCCL would silently use TCP, which "
			"is many times slower");
	else if (*check_text(answer, "lacks"))
		check_add(check, i, "container", CHECK_FAULT,
			  "show a build of it for the image's glibc, with what it needs, or use a "
			  "newer image",
			  "%s, which the image lacks", check_text(answer, "lacks"));
	else if (json_object_get(other, "end") && strcmp(text, first) != 0)
		check_add(check, i, "container", CHECK_FAULT,
			  "copy or pull the same image to all nodes", "%s here, %s on %s", text,
			  first, check->nodes[0].name);
	else
		fault = false;
	if (*check_text(answer, "MPI") && !*check_text(answer, "libpmix.so.2"))
		check_add(check, i, "container", CHECK_NOTE,
			  "use one that was built with PMIx, as Open MPI usually is",
			  "%s in the image has no PMIx: each rank would be alone",
			  check_text(answer, "MPI"));
	else if (!fault)
		check_add(check, i, "container", CHECK_OK, NULL, "%s", text);
}

static void judge_node(struct check *check, size_t i, const json_t *answer)
{
	if (!check->request->container || check->nodes[i].missing)
		return;
	if (!json_object_get(answer, "end"))
		check_add(check, i, "container", CHECK_FAULT,
			  "start one by hand on that node, with the runtime's own command",
			  "no container starts: %s",
			  !answer			 ? "no answer in time"
			  : *check_text(answer, "error") ? check_text(answer, "error")
							 : "it ended without a message");
	else
		judge_image(check, i, answer);
}

const struct check_probe probe_container = {"container", .collect = collect,
					    .judge_node = judge_node};
