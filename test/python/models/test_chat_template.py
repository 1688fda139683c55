"""Chat templates: the text of transformers byte for byte, and no way out of the sandbox, its memory or its time."""
import json
import time

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from diffattn.errors import CheckpointError
from diffattn.serving.chat_template import ChatTemplate, TemplateError, read_template

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
#: Templates that do as public ones do, in words of our own.
TEMPLATES = {
    "chatml": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "chatml with a system prompt of its own": "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}{% for m in messages %}"
              "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}",
    "instructions": "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
                    "{% elif m['role'] == 'assistant' %}{{ m['content'] + eos_token + ' ' }}{% endif %}{% endfor %}",
    "system in the first turn": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system = messages[0]['content'] %}{% else %}"
              "{% set loop_messages = messages %}{% set system = false %}{% endif %}{% for m in loop_messages %}{% if loop.index0 == 0 and system != false %}"
              "{% set content = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + m['content'] %}{% else %}{% set content = m['content'] %}{% endif %}"
              "{{ m['role'] ~ ': ' ~ content.strip() ~ '\n' }}{% endfor %}",
    "headers": "{% set ns = namespace(first=true) %}{% for m in messages %}{% set content = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + "
               "'<|eot_id|>' %}{% if ns.first %}{% set content = bos_token + content %}{% set ns.first = false %}{% endif %}{{ content }}{% endfor %}"
               "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    "turns": "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = m['role'] %}{% endif %}"
             "{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
    "last message": "{% for m in messages %}{% if not loop.last %}{{ m.content }} | {% else %}Q: {{ m.content }}{% endif %}{% endfor %}",
    "macros": "{% macro say(who, what) %}{{ who | upper }}> {{ what }}\n{% endmacro %}{% for m in messages %}{{ say(m.role, m.content) }}{% endfor %}",
    "json": "{% for m in messages %}{{ m | tojson }}\n{{ m | tojson(indent=2) }}{% endfor %}{{ {'a': ['<', 'é']} | tojson }}",
    "loop controls": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{% set x = 'in' %}{{ m.content }}{{ x }}{% endgeneration %}{{ x is defined }}"
                  "{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "trimmed blocks": "{% for m in messages %}\n    {% if m.role == 'user' %}\n  {{ m.content }}\n    {% endif %}\n{% endfor %}\nend",
    "tools and documents": "{% if tools %}tools{% elif tools is none %}none{% else %}undefined{% endif %}{{ tools is defined }}{{ documents is defined }}{{ xml is defined }}",
    "methods": "{% for m in messages %}{{ m.get('name', 'nobody') }}{{ m.items() | list | length }}{{ m.content.split(' ') | join('_') }}{{ m.content.startswith('W') }}"
               "{{ m.content[:3] }}{{ m.content | length }}{{ 'x' in m.content }}{% endfor %}",
    "reversed": "{% for m in messages[::-1] %}{{ loop.revindex }}{{ m.content | replace('e', 'E') | capitalize }}{% endfor %}{{ messages | map(attribute='role') | join(',') }}",
    "selected": "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}{{ messages | rejectattr('role', 'equalto', 'user') | list | length }}",
    "numbers": "{{ messages | length * 2 // 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ range(3) | sum }} {{ '%05.2f' | format(3.14159) }} {{ (1, 2) }} {{ none }} {{ true }}",
    "dictionaries": "{% set d = dict(a=1, b=2) %}{{ d.a }}{% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %}{% set n = namespace(self='x', y=[]) %}{{ n.self }}{{ n.y }}",
    "white space": "  {%- for m in messages -%}  {{ m.content -}}   \n {%- endfor %}\n\n",
    "comments": "{# what follows #}\n{%- for m in messages %}{# each #}{{ m.content }}{% endfor %}",
    "undefined": "[{{ missing }}][{{ messages[0].missing }}][{{ missing | default('none') }}]{% if missing is not defined %}not{% endif %}",
    "raw": "{% raw %}{{ not }}{% endraw %}{{ '{{' }}",
    "filters": "{% filter upper %}{% for m in messages %}{{ m.content }}{% endfor %}{% endfilter %}{{ '<b>' | e }}{{ ' x ' | trim }}{{ 'abc' | first }}{{ [3, 1, 2] | sort }}",
    "calls": "{% macro wrap() %}<{{ caller() }}>{% endmacro %}{% call wrap() %}{{ messages[0].content }}{% endcall %}",
    "else of a loop": "{% for m in messages if m.role == 'nobody' %}{{ m.content }}{% else %}nobody{% endfor %}",
    "conditions": "{{ 'yes' if messages | length > 2 else 'no' }}{{ 'user' if messages[-1].role == 'user' }}{% if messages[0].role is string and not false %}s{% endif %}",
    "recursion": "{% for item in [[1, [2]], 3] recursive %}{% if item is iterable %}({{ loop(item) }}){% else %}{{ item }}{% endif %}{% endfor %}",
    "cycles": "{% for m in messages %}{{ loop.cycle('a', 'b') }}{{ loop.previtem.role if loop.previtem is defined }}{{ loop.changed(m.role) }}{% endfor %}",
    "joined": "{{ messages[0]['content'] ~ 1 ~ none ~ [1.5] }}{{ 'a' 'b' }}{{ ('x' * 3) ~ '\\t' }}",
    "unicode": "{% for m in messages %}「{{ m.content }}」→{% endfor %}{{ 'ß' | upper }}{{ 'é' | tojson }}",
}
CHATS = [
    [{"role": "user", "content": "Who wrote this?"}],
    [{"role": "system", "content": "Be brief. "}, {"role": "user", "content": " Wer bist du? 你好 🙂\n"}, {"role": "assistant", "content": "x <b> & \"y\""},
     {"role": "user", "content": "And then?"}],
]


@pytest.mark.oracle
@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_are_those_of_transformers(name):
    template = ChatTemplate(TEMPLATES[name], TOKENS)
    for chat in CHATS:
        for add in (True, False):
            (expected,), _ = render_jinja_template([chat], chat_template=TEMPLATES[name], add_generation_prompt=add, **TOKENS)
            assert template.render(chat, add) == expected
    template.close()


def refused(text, messages=CHATS[0], limit=5.0):
    template = ChatTemplate(text, TOKENS, limit)
    try:
        with pytest.raises(TemplateError) as caught:
            template.render(messages)
    finally:
        template.close()
    return str(caught.value)


@pytest.mark.parametrize("text", [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.__class__ }}", "{{ cycler.__init__.__globals__ }}", "{{ self.__init__ }}",
    "{{ messages.append(1) }}", "{{ messages[0].update({'a': 1}) }}", "{% set n = namespace() %}{% set n.__class__ = 1 %}", "{{ namespace(_x=1) }}",
    "{{ dict.mro() }}", "{{ raise_exception.__globals__ }}", "{{ strftime_now.__code__ }}", "{{ '{0.__class__}'.format(1) }}",
    "{{ ('%s' | attr('__class__')) }}{{ [] | map(attribute='__class__') | list }}{{ ''.__class__() }}", "{% include '/etc/passwd' %}", "{% import 'os' as os %}{{ os }}",
    "{{ lipsum.__globals__['os'].popen('true').read() }}", "{% for i in range(10 ** 7) %}{% endfor %}",
])
def test_nothing_leads_out_of_the_sandbox(text):
    """A value that a template may not read is undefined, without a text, and any use of it is an error."""
    template = ChatTemplate(text, TOKENS)
    try:
        assert template.render(CHATS[0]) == ""
    except TemplateError as error:
        assert str(error).startswith("expected messages that the chat template takes, but got: ")
    finally:
        template.close()


def test_a_template_may_refuse():
    assert refused("{{ raise_exception('only users') }}") == "expected messages that the chat template takes, but got: only users"


def test_limits_of_time_and_memory():
    begin = time.monotonic()
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    assert "renders these messages within 0.3 seconds" in refused(endless, limit=0.3)
    assert time.monotonic() - begin < 10
    assert "MemoryError" in refused("{{ 'x' * 10 ** 12 }}")
    assert "a text of more than 16777216 characters" in refused("{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}")
    assert refused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").startswith("expected messages that the chat template takes")
    template = ChatTemplate("{% if messages[0].content == 'a' %}" + endless + "{% endif %}b", TOKENS, 0.3)  # the next one gets a process of its own
    with pytest.raises(TemplateError):
        template.render([{"role": "user", "content": "a"}])
    assert template.render([{"role": "user", "content": "c"}]) == "b"
    template.close()


def test_where_templates_lie(tmp_path):
    def text(**files):
        for name, content in files.items():
            (tmp_path / name.replace("_jinja", ".jinja").replace("_json", ".json")).write_text(content)
        template = read_template(tmp_path)
        if template is None:
            return None
        try:
            return template.render(CHATS[0])
        finally:
            template.close()

    assert text() is None
    assert text(tokenizer_config_json="{}") is None
    assert text(tokenizer_config_json=json.dumps({"chat_template": "{{ bos_token }}x", "bos_token": "B"})) == "Bx"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d{{ eos_token }}"}]
    assert text(tokenizer_config_json=json.dumps({"chat_template": named, "eos_token": {"content": "E"}})) == "dE"
    assert text(chat_template_jinja="{{ eos_token }}j") == "Ej"
    (tmp_path / "own").write_text("own")
    own = read_template(tmp_path, tmp_path / "own")
    assert own.render(CHATS[0]) == "own"
    own.close()


@pytest.mark.parametrize("config, message", [
    ("[1]", "expected an object, but got list"),
    ('{"chat_template": 5}', "expected 'chat_template' to be a text, but got int"),
])
def test_bad_files(tmp_path, config, message):
    (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(CheckpointError, match=message):
        read_template(tmp_path)


def test_a_template_that_is_none():
    template = ChatTemplate("{% if %}", TOKENS)
    with pytest.raises(CheckpointError, match="expected a chat template in Jinja, but got: TemplateSyntaxError"):
        template.start()
