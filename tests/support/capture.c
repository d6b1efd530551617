/* SPDX-License-Identifier: BSD-3-Clause */
#include "capture.h"

#include "../unit/rows.h"
#include "files.h"

#ifndef CAPTURES
#error "CAPTURES is the directory of the captured files"
#endif

char *capture_text(const char *file)
{
	char path[512];

	snprintf(path, sizeof path, "%s/%s", CAPTURES, file);
	return read_text(path);
}

void capture_change(struct env *env, const char *changes, const char *separators)
{
	char *copy = strdup(changes ? changes : "");

	assert_non_null(copy);
	for (char *at = strtok(copy, separators); at; at = strtok(NULL, separators)) {
		char *value = strchr(at, '=');

		if (value) {
			*value++ = '\0';
			assert_int_equal(env_set(env, at, value, ENV_FROM_USER, NULL, NULL), 0);
		} else {
			env_drop(env, at);
		}
	}
	free(copy);
}

struct env *capture_env(const char *file)
{
	struct env *env = env_new();
	char *text = file ? capture_text(file) : NULL;

	assert_non_null(env);
	capture_change(env, text, "\n");
	free(text);
	return env;
}

const char *capture_nodes(const struct alloc *alloc)
{
	static char text[1024];
	size_t used = 0;

	text[0] = '\0';
	for (size_t i = 0; i < alloc->node_count; i++) {
		const struct alloc_node *node = &alloc->nodes[i];

		used += (size_t)snprintf(text + used, sizeof text - used, "%s%s:%d:%d",
					 i ? " " : "", node->name, node->slots, node->gpus);
		assert_true(used < sizeof text);
	}
	return text;
}
