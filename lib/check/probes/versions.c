/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks for equal versions of berth, the architecture, the driver, and the libraries that a
 * program would find here by name. Libraries inside a Python environment are not detected. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/json.h"
#include "check/check_internal.h"

/* Load the first of the names that exists; libraries stay loaded until the prober ends. */
static void *load_library(const char *const *names)
{
	void *library = NULL;

	for (; *names && !library; names++)
		library = dlopen(*names, RTLD_LAZY | RTLD_LOCAL);
	return library;
}

static void *symbol(void *library, const char *name)
{
	return library ? dlsym(library, name) : NULL;
}

/* CUDA: 13000 is 13.0. */
static void add_cuda(json_t *out, const char *key, const char *const *names, const char *function)
{
	int (*version)(int *) = (int (*)(int *))symbol(load_library(names), function);
	int number = 0;

	if (version && !version(&number) && number)
		json_object_set_new(out, key,
				    json_sprintf("%d.%d", number / 1000, number % 1000 / 10));
}

/* cuDNN: 8907 is 8.9.7, 91002 is 9.10.2. */
static void add_cudnn(json_t *out)
{
	static const char *const names[] = {"libcudnn.so.9", "libcudnn.so.8", "libcudnn.so", NULL};
	size_t (*version)(void) = (size_t(*)(void))symbol(load_library(names), "cudnnGetVersion");
	size_t number = version ? version() : 0, major = number >= 90000 ? 10000 : 1000;

	if (number)
		json_object_set_new(out, "cuDNN",
				    json_sprintf("%zu.%zu.%zu", number / major,
						 number % major / 100, number % 100));
}

/* NCCL: 2708 is 2.7.8, 22809 is 2.28.9. */
static void add_nccl(json_t *out)
{
	static const char *const names[] = {"libnccl.so.2", "libnccl.so", NULL};
	int (*version)(int *) = (int (*)(int *))symbol(load_library(names), "ncclGetVersion");
	int number = 0, major;

	if (!version || version(&number) || !number)
		return;
	major = number >= 10000 ? 10000 : 1000;
	json_object_set_new(
		out, "NCCL",
		json_sprintf("%d.%d.%d", number / major, number % major / 100, number % 100));
}

/* Read the kernel module's version, which does not touch the GPU. */
static void add_driver(json_t *out)
{
	char text[64];

	if (!file_read_line("/sys/module/nvidia/version", text, sizeof text))
		json_object_set_new(out, "driver", json_text(text));
}

static json_t *collect(const struct prober *prober)
{
	static const char *const driver[] = {"libcuda.so.1", NULL};
	static const char *const runtime[] = {"libcudart.so", "libcudart.so.13", "libcudart.so.12",
					      "libcudart.so.11.0", NULL};
	json_t *out = json_object();
	struct utsname name;

	json_object_set_new(out, "berth", json_text(prober->version));
	if (!uname(&name))
		json_object_set_new(out, "architecture", json_text(name.machine));
	add_driver(out);
	add_cuda(out, "CUDA of the driver", driver, "cuDriverGetVersion");
	add_cuda(out, "CUDA", runtime, "cudaRuntimeGetVersion");
	add_cudnn(out);
	add_nccl(out);
	return out;
}

/* ---- in the controller ---- */

static const struct {
	const char *key;
	const char *fix;
} compared[] = {
	{"berth", "use one berth for all nodes, in a directory that all of them see"},
	{"architecture", "use nodes of one kind in a job: request a partition or a constraint"},
	{"driver", "ask an administrator to update the driver; exclude the node until then"},
	{"CUDA of the driver",
	 "ask an administrator to update the driver; exclude the node until then"},
	{"CUDA", "use the same modules and LD_LIBRARY_PATH on all nodes"},
	{"cuDNN", "use the same modules and LD_LIBRARY_PATH on all nodes"},
	{"NCCL",
	 "use the same modules and LD_LIBRARY_PATH on all nodes: NCCL refuses to mix versions"},
};
#define COMPARED (sizeof compared / sizeof *compared)

static const char *value(const struct check *check, size_t node, const char *key)
{
	const char *text = check_text(check_answer(check, node, "versions"), key);

	return *text ? text : "none";
}

/* What most nodes have, or the first node's value if there is no majority. */
static const char *usual(const struct check *check, const char *key)
{
	const char *best = NULL;
	size_t best_count = 0;

	for (size_t i = 0; i < check->count; i++) {
		size_t count = 0;

		if (!check_answer(check, i, "versions"))
			continue;
		for (size_t j = 0; j < check->count; j++)
			count += check_answer(check, j, "versions") &&
				 !strcmp(value(check, i, key), value(check, j, key));
		if (count > best_count) {
			best = value(check, i, key);
			best_count = count;
		}
	}
	return best;
}

/* "berth 0.2.0, x86_64, driver 580.65" */
static void describe_versions(const json_t *answer, char *text, size_t size)
{
	for (size_t k = 0; k < COMPARED; k++) {
		const char *value = check_text(answer, compared[k].key);
		const char *name = k == 1 ? "" : compared[k].key;

		if (*value)
			text_append(text, size, "%s%s%s%s", *text ? ", " : "", name,
				    *name ? " " : "", value);
	}
}

static void judge_node(struct check *check, size_t i, const json_t *answer)
{
	char text[512] = "";
	bool fault = false;

	if (!answer)
		return;
	for (size_t k = 0; k < COMPARED; k++) {
		const char *key = compared[k].key, *mine = value(check, i, key),
			   *theirs = usual(check, key);

		if (!theirs || !strcmp(mine, theirs))
			continue;
		check_add(check, i, "versions", CHECK_FAULT, compared[k].fix,
			  "%s: %s here, %s on other nodes", key, mine, theirs);
		fault = true;
	}
	describe_versions(answer, text, sizeof text);
	if (!fault)
		check_add(check, i, "versions", CHECK_OK, NULL, "%s", text);
}

const struct check_probe probe_versions = {"versions", .collect = collect,
					   .judge_node = judge_node};
