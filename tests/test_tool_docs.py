"""What is read about a function from its docstring and its comments, and the box that holds tools by name."""
import functools
from typing import Annotated

import pytest

from rishi.errors import BadRequest
from rishi.tools import Toolbox, tool_schema
from rishi.tools.docs import read_comments, read_docstring


class Shop:
    def price(self, item: str) -> float: "The price of an item."


def base(a: int, b: str, c=2): "Base."
def function(fn): return tool_schema(fn)['function']
def params(fn): return function(fn)['parameters']


# --- descriptions ---------------------------------------------------------------------------------------------------
GOOGLE = """Get the weather.

    It is looked up
    at once.

    Args:
        city (str): The city,
            in English.
        days (list[tuple(int, int)], optional): How far: a number
        **more: Others.

    Returns:
        str: what to expect

    Note:
        Slow.
    """
NUMPY = """Get the weather.

    It is looked up
    at once.

    Parameters
    ----------
    city : str
        The city,
        in English.
    days : int, optional
        How far: a number
    **more
        Others.

    Returns
    -------
    str: what to expect

    Note
    ----
    Slow.
    """
SPHINX = """Get the weather.

    It is looked up
    at once.

    :param str city: The city,
        in English.
    :param days: How far: a number
    :type days: int
    :param more: Others.
    :returns: str: what to expect
    :rtype: str
    """


@pytest.mark.parametrize('doc', [GOOGLE, NUMPY, SPHINX, SPHINX.replace(':param', '@param')],
                         ids=['google', 'numpy', 'sphinx', 'epytext'])
def test_docstrings(doc):
    docs = read_docstring(doc)
    assert docs.params == {'city': 'The city, in English.', 'days': 'How far: a number', 'more': 'Others.'}
    assert docs.returns == 'str: what to expect'
    assert docs.text.startswith('Get the weather.\n\nIt is looked up\nat once.')
    assert 'city' not in docs.text and ('Slow.' in docs.text) == ('Slow.' in doc)


def test_docstring_siblings():
    two = read_docstring('Parameters\n---------\na, b : int\n    Numbers.')
    assert two.params == {'a': 'Numbers.', 'b': 'Numbers.'}
    assert read_docstring('Args: none of them.').text == 'Args: none of them.'
    assert read_docstring('').text == '' and read_docstring('One.\n\nArgs:\n').params == {}
    assert read_docstring('Do.\n\nArgs:\n    a: A.\nThen more.').text == 'Do.\n\nThen more.'


def test_comments():
    def f(a:int, # first  # of all
          b=(1,
             2), # second
          # above
          c:str='x',
          d=1, e=2, # whose?
          *rest, # type: ignore
          # the key
          # of it
          k:int=0,
          **more # others
         )->int: # the sum
        "F."
    docs = read_comments(f)
    assert docs.params == {'a': 'first  # of all', 'b': 'second', 'c': 'above', 'k': 'the key of it', 'more': 'others'}
    assert docs.returns == 'the sum' and function(f)['description'] == 'F.\nReturns: the sum'


def test_comments_that_say_nothing():
    def one(a, b): # not about b
        pass
    def two(a, b): pass # nor this
    def three(a): return '# no comment'
    def four(a,
             b): # about b
        pass
    def five(a,
             b)->int: # about the result
        pass
    assert [read_comments(f).params for f in (one, two, three, four, five)] == [{}, {}, {}, {'b': 'about b'}, {}]
    assert [read_comments(f).returns for f in (one, two, three, four, five)] == ['', '', '', '', 'about the result']


def test_comments_win_over_docstring_and_annotated_over_both():
    def f(a, # from the comment
          b: Annotated[int, 'from Annotated'], # not me
          c): # also a comment
        """F.

        :param a: from the docstring
        :param b: nor me
        """
    assert {n: p['description'] for n, p in params(f)['properties'].items()} == {
        'a': 'from the comment', 'b': 'from Annotated', 'c': 'also a comment'}


def test_no_source():
    space = {}
    exec('def f(a: int): # gone\n    "F."', space)
    assert function(space['f'])['description'] == 'F.'


# --- the box --------------------------------------------------------------------------------------------------------
def test_toolbox():
    def add(a, b): pass
    box = Toolbox([add, base, add])
    assert box.names == list(box) == ['add', 'base'] and len(box) == 2 and box['add'] is add
    assert box.schemas == [tool_schema(add), tool_schema(base)] and box.functions == [add, base]
    assert Toolbox(box).schemas == box.schemas and repr(box) == 'Toolbox(add, base)'
    assert Toolbox(add).names == ['add'] and not Toolbox() and not Toolbox([]) and Toolbox((add,)).names == ['add']


def test_names_clash():
    with pytest.raises(BadRequest, match='base'): Toolbox([base, functools.partial(base, 1)])
    with pytest.raises(BadRequest, match='price'): Toolbox([Shop().price, Shop().price])
    shop = Shop()
    assert Toolbox([shop.price, shop.price]).names == ['price']
    assert Toolbox({'here': shop.price, 'there': Shop().price}).names == ['here', 'there']


@pytest.mark.parametrize('name', ['base.__globals__', 'Base', ' base', 'base()', '__class__', None, ['base'], 0, {}])
def test_exact_names_only(name): assert name not in Toolbox(base) and Toolbox(base).get(name) is None


@pytest.mark.parametrize('bad', [5, 'base', ['base'], {'x': 3}, [None]])
def test_bad_boxes(bad):
    with pytest.raises(BadRequest): Toolbox(bad)
