from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('servers', '0001_initial'),
    ]

    operations = [
        migrations.AddField(
            model_name='server',
            name='found_how',
            field=models.CharField(blank=True, max_length=300),
        ),
        migrations.AddField(
            model_name='server',
            name='socket_path',
            field=models.CharField(blank=True, max_length=107),
        ),
        migrations.AddField(
            model_name='server',
            name='token_name',
            field=models.CharField(blank=True, max_length=100),
        ),
        migrations.AlterField(
            model_name='server',
            name='transport',
            field=models.CharField(choices=[('http', 'HTTP'), ('stdio', 'stdio'), ('unix', 'Unix socket')], max_length=10),
        ),
    ]
