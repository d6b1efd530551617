/* SPDX-License-Identifier: BSD-3-Clause */
/* Variables of the job that will not do what their author meant: plan's lint. */
#include "base/json.h"
#include "check/internal.h"

void probe_variables_judge(struct check *check)
{
	JSON_AUTO list = check->carded
				 ? plan_lint(check->request->env, check->cards, check->count)
				 : NULL;
	json_t *text;
	size_t i;

	if (!list)
		return;
	json_array_foreach(list, i, text)
		check_add(check, 0, "variables", CHECK_NOTE, "unset or correct it in the job script",
			  "%s", json_string_value(text));
	if (!json_array_size(list))
		check_add(check, 0, "variables", CHECK_OK, NULL,
			  "none that would not do what it says");
}
